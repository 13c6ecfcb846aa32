# SPDX-License-Identifier: Apache-2.0
"""Stage 2 of the native engine: one dictionary per column."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preproc.criteo.dictionaries import Dictionaries, map_file
from preproc.criteo.engine import EngineJob
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.engines.native.scan import (
    ScannedInput,
    ScannedUnit,
    load_unit,
    scan_unit,
    table_budget,
)
from preproc.criteo.engines.native.units import NativeSettings
from preproc.criteo.rules import NUM_CATEGORICAL, REMEDIES, split_bounds
from preproc.files.budget import free_budget, memory_error, run_units, share_budget
from preproc.files.progress import Progress
from preproc.files.workspace import atomic_file, settings_key

LEAST_MERGE_BYTES = 2 * 2**20
"""A table of one MiB and as much for the categories of a small column."""


def merge(engine_job: EngineJob, scanned: ScannedInput, settings: NativeSettings) -> Dictionaries:
    """Merges the runs of the rows that dictionaries are made from.

    Raises:
        PreprocError: the categories kept do not fit the memory limit.
    """
    counted, dictionaries = plan_merge(engine_job, scanned, settings)
    if missing := dictionaries.missing():
        runs = map_runs(counted)
        # The longest first, so that threads end together.
        missing.sort(key=lambda c: -sum(len(r) for r in runs[c]))
        _merge_columns(engine_job, runs, missing, dictionaries, settings)
    return dictionaries


def plan_merge(
    engine_job: EngineJob, scanned: ScannedInput, settings: NativeSettings
) -> tuple[list[ScannedUnit], Dictionaries]:
    """Returns the units whose runs count, and where their dictionaries are or will be."""
    counted = _counted_units(engine_job, scanned, settings)
    key = settings_key(
        {
            "scan": scanned.folder.name,
            "units": [u.runs_path.name for u in counted],
            "frequency_limit": max(engine_job.job.semantics.frequency_limit, 1),
        }
    )
    folder = engine_job.workspace.unit_dir("merge", key)
    return counted, Dictionaries(folder, key)


def _counted_units(
    engine_job: EngineJob, scanned: ScannedInput, settings: NativeSettings
) -> list[ScannedUnit]:
    """Returns the units whose rows the dictionaries count; a last one may be cut short."""
    semantics = engine_job.job.semantics
    if semantics.dictionary_days == "all":
        return list(scanned.units)
    _, end = split_bounds(rows_per_file(scanned), semantics)["train"]
    counted = []
    for index, unit in enumerate(scanned.units):
        first, last = scanned.first_rows[index : index + 2]
        if last <= end:
            counted.append(unit)
        elif first < end:
            counted.append(_scan_cut(engine_job, scanned, unit, end - first, settings))
    return counted


def _scan_cut(
    engine_job: EngineJob,
    scanned: ScannedInput,
    unit: ScannedUnit,
    rows: int,
    settings: NativeSettings,
) -> ScannedUnit:
    """Counts the first rows of a unit again: the training rows end inside it."""
    name = f"{unit.unit.name}_first_{rows}"
    found = load_unit(scanned.folder, unit.unit, name)
    if found is not None:
        return found
    _, table_bytes = table_budget(engine_job, settings)
    progress = Progress()
    modulus = engine_job.job.semantics.category_modulus
    return scan_unit(
        modulus, scanned.folder, unit.unit, name, table_bytes, progress, row_limit=rows
    )


def rows_per_file(scanned: ScannedInput) -> list[int]:
    """Returns the valid rows of each input file."""
    rows = [0] * (scanned.units[-1].unit.file_index + 1)
    for unit in scanned.units:
        rows[unit.unit.file_index] += unit.result.rows
    return rows


Runs = list[list[npt.NDArray[np.uint64]]]


def map_runs(units: Sequence[ScannedUnit]) -> Runs:
    """Returns the runs of each column (mapped, not read)."""
    runs: Runs = [[] for _ in range(NUM_CATEGORICAL)]
    for unit in units:
        entries = map_file(unit.runs_path, binding.RUN_ENTRY)
        for run in unit.result.runs:
            runs[run.column].append(entries[run.first_entry : run.first_entry + run.entries])
    return runs


class _DoesNotFitError(Exception):
    def __init__(self, needed: int) -> None:
        self.needed = needed


def merge_column(
    runs: list[npt.NDArray[np.uint64]],
    path: Path,
    frequency_limit: int,
    budget: int,
    progress: Progress,
) -> int:
    """Writes the dictionary of one column.

    Returns:
        0, or the bytes needed where they exceed the budget; then nothing is written.
    """
    try:
        with atomic_file(path) as fd:
            result = binding.merge_runs(
                runs,
                frequency_limit=frequency_limit,
                budget_bytes=budget,
                dictionary_fd=fd,
                progress=progress,
            )
            if result.needed_bytes > budget:
                raise _DoesNotFitError(result.needed_bytes)
    except _DoesNotFitError as error:
        return error.needed
    return 0


def _merge_columns(
    engine_job: EngineJob,
    runs: Runs,
    columns: list[int],
    dictionaries: Dictionaries,
    settings: NativeSettings,
) -> None:
    job = engine_job.job
    progress = Progress()

    def work(column: int, budget: int) -> int:
        return merge_column(
            runs[column],
            dictionaries.path(column),
            job.semantics.frequency_limit,
            budget,
            progress,
        )

    total = sum(r.nbytes for c in columns for r in runs[c])
    with engine_job.reporter.stage("merge", total, lambda: (progress.bytes, 0)):
        threads, share = share_budget(job.memory_limit, job.threads, LEAST_MERGE_BYTES)
        share = settings.merge_bytes or share
        large = []
        for column, needed in run_units(columns, lambda c: work(c, share), threads, progress):
            if needed:
                large.append(column)
        for column in large:  # alone, with all the memory there is
            free = free_budget(job.memory_limit)
            if needed := work(column, free):
                needed += job.memory_limit - free
                raise memory_error(job.memory_limit, needed, REMEDIES)
