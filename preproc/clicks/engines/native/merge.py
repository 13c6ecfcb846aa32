# SPDX-License-Identifier: Apache-2.0
"""Stage 2 of the native engine: merges runs into dictionaries."""

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from preproc.clicks.dictionaries import Dictionaries
from preproc.clicks.engine import EngineJob, bounds_of
from preproc.clicks.engines.native.number_bins import (
    EDGE,
    columns_without_edges,
    edges_path,
    write_bins,
)
from preproc.clicks.engines.native.scan import (
    ScannedInput,
    ScannedUnit,
    least_scan_bytes,
    load_unit,
    scan_unit,
)
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.growth.rare_counts import read_words
from preproc.clicks.kernel import binding
from preproc.clicks.rules import REMEDIES, ClicksSemantics
from preproc.clicks.schema.row_format import Edges
from preproc.files.budget import Threads, free_budget, memory_error
from preproc.files.progress import Progress, Tally
from preproc.files.workspace import atomic_file, attempt_folder, remove_attempts
from recsys.data.positioned_io import map_array

LEAST_MERGE_BYTES = 2 * 2**20
"""Least memory to merge a column: a table of 1 MiB, and 1 MiB for the kept categories."""


def merge(
    engine_job: EngineJob, executor: Threads, scanned: ScannedInput, settings: NativeSettings
) -> tuple[Dictionaries, Edges]:
    """Makes the missing dictionaries; returns all of them, and the bin edges.

    Raises:
        PreprocError: the kept categories do not fit the memory limit.
    """
    job = engine_job.job
    counted = _counted_units(engine_job, executor, scanned, settings)
    folder = engine_job.work_folder(
        "merge",
        scan=scanned.key,
        units=[u.runs_path.name for u in counted],
        limits=[job.semantics.limits(c) for c in range(job.semantics.num_categorical)],
        vocabularies=job.semantics.vocabularies,
        **engine_job.growth_key,
    )
    dictionaries = Dictionaries(
        folder, job.semantics.key_types, folder.name, has_counts=engine_job.growth is not None
    )
    if missing := dictionaries.missing():
        remove_attempts(dictionaries.folder)
        _merge_missing(engine_job, executor, counted, dictionaries, missing, settings)
    return dictionaries, {
        column.name: tuple(map_array(edges_path(folder, number), EDGE).tolist())
        for number, column in columns_without_edges(job.semantics).items()
    }


def _merge_missing(
    engine_job: EngineJob,
    executor: Threads,
    counted: Sequence[ScannedUnit],
    dictionaries: Dictionaries,
    missing: list[int],
    settings: NativeSettings,
) -> None:
    job = engine_job.job
    runs = Runs(counted, job.semantics.vocabularies)
    sizes = runs.sizes()
    missing.sort(key=lambda column: -sizes[column])  # longest first: all end together
    progress = Progress()
    known = None if engine_job.growth is None else engine_job.growth.known
    work = functools.partial(_merge_column, runs, known, dictionaries, job.semantics)
    together = functools.partial(work, settings.merge_bytes, None)
    alone = functools.partial(work, None, job.memory_limit)
    total = sum(sizes[column] for column in missing)
    with engine_job.reporter.stage("merge", total, lambda: (progress.bytes, 0)):
        executor.map(together, missing, LEAST_MERGE_BYTES, progress)
        for column in dictionaries.missing():  # too large to be merged along with others
            executor.map(alone, [column], LEAST_MERGE_BYTES, progress)


def _counted_units(
    engine_job: EngineJob, executor: Threads, scanned: ScannedInput, settings: NativeSettings
) -> list[ScannedUnit]:
    """Returns the units whose categories are counted.

    If the training split ends inside a unit, the first rows of this unit are scanned again.
    """
    semantics = engine_job.job.semantics
    _, end = bounds_of(scanned.files, semantics)["train"]
    if semantics.dictionary_days == "all" or semantics.splits_by_row:
        return list(scanned.units)  # the scan counted the right rows already
    counted = []
    for index, unit in enumerate(scanned.units):
        first, last = scanned.first_rows[index : index + 2]
        if last <= end:
            counted.append(unit)
        elif first < end:
            counted.append(_scan_first(engine_job, executor, scanned, unit, end - first, settings))
    return counted


def _scan_first(
    engine_job: EngineJob,
    executor: Threads,
    scanned: ScannedInput,
    unit: ScannedUnit,
    rows: int,
    settings: NativeSettings,
) -> ScannedUnit:
    """Scans the first `rows` valid rows of a unit."""
    name = f"{unit.unit.name}_first_{rows}_of_{unit.result.checksum:016x}"
    semantics = engine_job.job.semantics
    work = functools.partial(
        scan_unit, scanned.folder, semantics, settings.table_bytes, name=name, row_limit=rows
    )
    if (first := load_unit(scanned.folder, unit.unit, name)) is None:
        executor.map(work, [unit.unit], least_scan_bytes(unit.unit), Progress())
        first = load_unit(scanned.folder, unit.unit, name)
        assert first is not None
    return first


class Runs:
    """The sorted runs of each column's vocabulary, memory-mapped at first use.

    Can be pickled and sent to another process, which maps the files again.
    """

    def __init__(
        self, units: Sequence[ScannedUnit], vocabularies: tuple[tuple[int, ...], ...]
    ) -> None:
        self._units, self._vocabularies = units, vocabularies
        self._lock = threading.Lock()
        self._columns: list[list[npt.NDArray[np.uint64]]] = []

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the units without the mapped files."""
        return Runs, (self._units, self._vocabularies)

    def sizes(self) -> list[int]:
        """Returns the bytes of the runs for each column."""
        words = Counter[int]()
        for unit in self._units:
            for run in unit.result.runs:
                words[run.column] += run.words
        of_each = (sum(words[column] for column in columns) for columns in self._vocabularies)
        return [count * binding.RUN_WORD.itemsize for count in of_each]

    def of_column(self, column: int) -> list[npt.NDArray[np.uint64]]:
        """Returns the memory-mapped runs for a column."""
        with self._lock:
            if not self._columns:
                self._columns = self._map()
        return [run for each in self._vocabularies[column] for run in self._columns[each]]

    def _map(self) -> list[list[npt.NDArray[np.uint64]]]:
        columns: list[list[npt.NDArray[np.uint64]]] = [[] for _ in self._vocabularies]
        for unit in self._units:
            words = map_array(unit.runs_path, binding.RUN_WORD)
            for run in unit.result.runs:
                columns[run.column].append(words[run.first_word : run.first_word + run.words])
        return columns


def _merge_column(
    runs: Runs,
    known: Dictionaries | None,
    dictionaries: Dictionaries,
    semantics: ClicksSemantics,
    merge_bytes: int | None,
    memory_limit: int | None,
    column: int,
    budget: int,
    progress: Progress,
) -> Tally:
    """Writes the dictionary of a column if its budget suffices.

    The budget is `merge_bytes` if given. With `memory_limit` it is all free memory, which must
    suffice.
    """
    budget = merge_bytes or budget
    if memory_limit is not None:
        budget = free_budget(memory_limit)
    paths = dictionaries.paths(column)
    numbers = columns_without_edges(semantics).get(column)
    if numbers is not None:
        paths = [edges_path(dictionaries.folder, column), *paths]
    with attempt_folder(dictionaries.folder) as private:
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(atomic_file(private / path.name)) for path in paths]
            if numbers is not None:
                needed_bytes = write_bins(
                    runs.of_column(column),
                    numbers.quantiles,
                    known=None if known is None else known.load_column(column).values,
                    budget_bytes=budget,
                    edges_file=files[0],
                    keys_file=files[-1],
                    progress=progress,
                )
            else:
                needed_bytes = _merge_runs(
                    runs.of_column(column),
                    known,
                    dictionaries,
                    column,
                    semantics.limits(column),
                    dict(zip(paths, files, strict=True)),
                    budget,
                    progress,
                )
        if needed_bytes <= budget:
            for path in paths:
                (private / path.name).replace(path)
            return Tally(text_bytes=runs.sizes()[column])
    if memory_limit is not None:
        remedy = REMEDIES if numbers is None else f", or give the bin edges of {numbers.name}"
        raise memory_error(memory_limit, needed_bytes + memory_limit - budget, remedy)
    return Tally()


def _merge_runs(
    runs: list[npt.NDArray[np.uint64]],
    known: Dictionaries | None,
    dictionaries: Dictionaries,
    column: int,
    limits: tuple[int, int],
    files: Mapping[Path, IO[bytes]],
    budget: int,
    progress: Progress,
) -> int:
    """Merges the runs of a column; new categories follow the known ones.

    Args:
        runs: sorted runs of the rows that are counted.
        known: ids and counts of the day before.
        dictionaries: paths of the files.
        column: number of the column.
        limits: least occurrences of a category with an id, and the most ids (0: no limit).
        files: path in `dictionaries` -> open file.
        budget: bytes of memory.
        progress: counters to advance.

    Returns:
        The bytes of memory that the merge needs; above the budget, the files are not valid.
    """
    keys_file, ends_file = (
        files[dictionaries.path(column)],
        files.get(dictionaries.ends_path(column)),
    )
    counts_file = files.get(dictionaries.counts_path(column))
    limit, max_ids = limits
    with contextlib.ExitStack() as stack:
        lookup, lookup_bytes = None, 0
        if known is not None:
            keys = known.load_column(column)
            lookup_bytes = binding.dictionary_bytes_of(keys)
            if lookup_bytes + LEAST_MERGE_BYTES > budget:
                return lookup_bytes + LEAST_MERGE_BYTES
            keys_file.write(keys.values.data)
            if ends_file is not None and keys.ends is not None:
                ends_file.write(keys.ends.data)
            if max_ids:
                max_ids -= len(keys)
                if max_ids <= 0:
                    return 0  # no id is free, so nothing is counted any more
            rare = read_words(known.counts_path(column))
            runs = [*runs, *([rare] if len(rare) else [])]
            lookup = stack.enter_context(binding.open_dictionaries([keys]))[0]
        for file in files.values():
            file.flush()
        return lookup_bytes + int(
            binding.merge_runs(
                runs,
                key_type=dictionaries.key_types[column],
                limits=(limit, max_ids),
                budget_bytes=budget - lookup_bytes,
                known=lookup,
                keys_fd=keys_file.fileno(),
                ends_fd=-1 if ends_file is None else ends_file.fileno(),
                counts_fd=-1 if counts_file is None else counts_file.fileno(),
                progress=progress,
            ).needed_bytes
        )
