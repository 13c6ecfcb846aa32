# SPDX-License-Identifier: Apache-2.0
"""Stage 3 of the native engine: writes the columns of the splits."""

import contextlib
import ctypes
import dataclasses
import functools
import threading
from pathlib import Path

from preproc.clicks.columns import EncodeStage, SplitColumnsWriter, open_stage
from preproc.clicks.dictionaries import Dictionaries
from preproc.clicks.engine import EngineJob, bounds_of
from preproc.clicks.engines.native.scan import ScannedInput, ScannedUnit
from preproc.clicks.engines.native.units import first_byte, read_unit, stream_bytes
from preproc.clicks.kernel import binding
from preproc.clicks.rules import REMEDIES, SPLITS, Bounds, ClicksSemantics, Split
from preproc.files.budget import Threads, free_budget, memory_error
from preproc.files.input_file import changed
from preproc.files.progress import Progress, Tally
from preproc.files.workspace import remove_attempts


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncodePlan:
    """State of the encode stage, with units in row order; can be pickled.

    `row_ranges` are the global rows of each unit, as one range or one per split.
    """

    stage: EncodeStage
    columns: SplitColumnsWriter
    semantics: ClicksSemantics
    bounds: Bounds
    units: tuple[ScannedUnit, ...]
    row_ranges: tuple[tuple[tuple[int, int], ...], ...]


def encode(
    engine_job: EngineJob, executor: Threads, scanned: ScannedInput, dictionaries: Dictionaries
) -> EncodePlan:
    """Encodes every unit that is not encoded yet.

    Raises:
        PreprocError: the dictionaries do not fit the memory limit, or the input changed.
    """
    semantics = engine_job.job.semantics
    bounds = bounds_of(scanned.files, semantics)
    stage = open_stage(engine_job, dictionaries, scan=scanned.key)
    plan = EncodePlan(
        stage=stage,
        columns=SplitColumnsWriter(
            stage, semantics.feature_spec(dictionaries.cardinalities), bounds
        ),
        semantics=semantics,
        bounds=bounds,
        units=scanned.units,
        row_ranges=scanned.row_ranges(bounds, by_row=semantics.splits_by_row),
    )
    missing = [i for i, u in enumerate(plan.units) if stage.record(u.unit.name) is None]
    if missing:
        remove_attempts(stage.lists)
        _encode_units(engine_job, executor, plan, dictionaries, missing)
    plan.columns.join_lists([unit.unit.name for unit in plan.units])
    return plan


def _encode_units(
    engine_job: EngineJob,
    executor: Threads,
    plan: EncodePlan,
    dictionaries: Dictionaries,
    missing: list[int],
) -> None:
    todo = sum((plan.units[i].tally for i in missing), Tally())
    total = sum(u.result.text_bytes for u in plan.units)
    all_rows = sum(u.result.rows for u in plan.units)
    progress = Progress(total - todo.text_bytes, all_rows - todo.rows)
    work = functools.partial(_encode_unit, plan)
    stream = stream_bytes(plan.units[0].unit.row_format)
    prepare = functools.partial(_open_tables, dictionaries, engine_job.job.memory_limit, stream)
    try:
        with engine_job.reporter.stage("encode", total, progress.counters), plan.columns.open():
            executor.map(work, missing, stream, progress, prepare=prepare)
    finally:
        _tables.close()


class _Tables:
    """Lookup tables of this process, kept for later tasks of an executor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._stack = contextlib.ExitStack()
        self.opened: ctypes.Array[ctypes.c_void_p]

    def open(self, dictionaries: Dictionaries, memory_limit: int, stream: int) -> None:
        """Builds the tables of `dictionaries` unless they are open.

        Raises:
            PreprocError: they and a stream do not fit the memory limit.
        """
        with self._lock:
            if self._folder == dictionaries.folder:
                return
            self.close()
            needed, free = (
                binding.dictionary_bytes(dictionaries) + stream,
                free_budget(memory_limit),
            )
            if needed > free:
                raise memory_error(memory_limit, memory_limit - free + needed, REMEDIES)
            opened = binding.open_dictionaries(dictionaries.load())
            self.opened = self._stack.enter_context(opened)
            self._folder = dictionaries.folder

    def close(self) -> None:
        """Frees the memory of the tables."""
        self._stack.close()
        self._folder = None


_tables = _Tables()


def _open_tables(dictionaries: Dictionaries, memory_limit: int, stream: int) -> None:
    _tables.open(dictionaries, memory_limit, stream)


def _encode_unit(plan: EncodePlan, index: int, _budget: int, progress: Progress) -> Tally:
    name = plan.units[index].unit.name
    with plan.columns.open() as columns:
        clicks = _write_rows(plan, index, progress)
        columns.finish_unit(name, plan.row_ranges[index], clicks)
    return plan.units[index].tally


def _write_rows(plan: EncodePlan, index: int, progress: Progress) -> dict[Split, int]:
    """Writes the rows of a unit; returns their clicks in each split.

    Raises:
        PreprocError: the input changed since it was scanned.
    """
    unit, rows = plan.units[index], plan.row_ranges[index]
    with (
        plan.columns.unit_targets(unit.unit.name, rows) as targets,
        binding.Encoder(
            dictionaries=_tables.opened,
            semantics=plan.semantics,
            row_format=unit.unit.row_format,
            targets=[target for _, target in targets],
            offset=first_byte(unit.unit),
            progress=progress,
        ) as encoder,
    ):
        _, clicks = read_unit(encoder, unit.unit)
        if encoder.checksum() != unit.result.checksum:
            unit.forget()  # the next run may take the file for unchanged
            raise changed(unit.unit.file.path)
    positives = dict.fromkeys(SPLITS, 0)
    for (split, _), count in zip(targets, clicks, strict=True):
        positives[split] += count
    return positives
