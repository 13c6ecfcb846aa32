# SPDX-License-Identifier: Apache-2.0
"""Stage 3 of the native engine: rows to columns."""

import ctypes
import dataclasses
from pathlib import Path

from preproc.criteo.columns import Bounds, EncodeStage, SplitColumnsWriter, open_stage
from preproc.criteo.dictionaries import Dictionaries
from preproc.criteo.engine import (
    EncodedColumns,
    EngineJob,
)
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.engines.native.merge import rows_per_file
from preproc.criteo.engines.native.scan import ScannedInput, ScannedUnit
from preproc.criteo.engines.native.units import STREAM_BYTES, feed_unit
from preproc.criteo.rules import (
    REMEDIES,
    SPLITS,
    CriteoSemantics,
    Split,
    split_bounds,
)
from preproc.files.budget import free_budget, memory_error, run_units, share_budget
from preproc.files.errors import PreprocError
from preproc.files.progress import Progress
from recsys.data.feature_spec import FeatureSpec


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedInput:
    """The staged dataset, rows and clicks of its splits, and what later stages make of them."""

    dataset: Path
    rows: dict[Split, int]
    positives: dict[Split, int]
    columns: EncodedColumns


def encode(
    engine_job: EngineJob,
    scanned: ScannedInput,
    dictionaries: Dictionaries,
) -> EncodedInput:
    """Encodes every unit that was not encoded before.

    Raises:
        PreprocError: the dictionaries do not fit the memory limit, or the input changed.
    """
    plan = plan_encode(engine_job, scanned, dictionaries)
    if missing := plan.missing():
        _encode_units(engine_job, plan, dictionaries, missing)
    return finish_encode(plan, dictionaries)


def plan_encode(
    engine_job: EngineJob, scanned: ScannedInput, dictionaries: Dictionaries
) -> "EncodePlan":
    """Returns what encoding needs to know, with the staging folder made."""
    semantics = engine_job.job.semantics
    bounds = split_bounds(rows_per_file(scanned), semantics)
    depends = {"scan": scanned.folder.name, "merge": dictionaries.key}
    stage = open_stage(engine_job, depends, bounds)
    return EncodePlan(
        stage=stage,
        columns=SplitColumnsWriter(stage, FeatureSpec.criteo(dictionaries.cardinalities), bounds),
        semantics=semantics,
        bounds=bounds,
        units=scanned.units,
        first_rows=scanned.first_rows,
    )


def finish_encode(plan: "EncodePlan", dictionaries: Dictionaries) -> EncodedInput:
    """Completes the staged dataset once every unit is encoded."""
    rows = {split: last - first for split, (first, last) in plan.bounds.items()}
    dictionaries.copy_to(plan.stage.dataset)
    clicks = plan.stage.clicks(u.unit.name for u in plan.units)
    return EncodedInput(plan.stage.dataset, rows, clicks, plan.stage.encoded())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncodePlan:
    """What encoding needs to know; may be sent to another process.

    Attributes:
        stage: takes the records of encoded units.
        columns: takes the rows.
        semantics: modulus and rule for numerical features.
        bounds: global rows of each split.
        units: every unit, in row order.
        first_rows: global number of each unit's first row.
    """

    stage: EncodeStage
    columns: SplitColumnsWriter
    semantics: CriteoSemantics
    bounds: Bounds
    units: tuple[ScannedUnit, ...]
    first_rows: tuple[int, ...]

    def missing(self) -> list[int]:
        """Returns the numbers of the units that are not encoded yet."""
        return [i for i, u in enumerate(self.units) if self.stage.record(u.unit.name) is None]


def _encode_units(
    engine_job: EngineJob, plan: EncodePlan, dictionaries: Dictionaries, missing: list[int]
) -> None:
    job = engine_job.job
    check_encode_memory(job.memory_limit, dictionaries)
    progress = Progress()
    total = sum(u.result.text_bytes for u in plan.units)
    progress.bytes = total - sum(plan.units[i].result.text_bytes for i in missing)
    progress.rows = plan.first_rows[-1] - sum(plan.units[i].result.rows for i in missing)
    with (
        engine_job.reporter.stage("encode", total, lambda: (progress.bytes, progress.rows)),
        binding.open_dictionaries(dictionaries.load()) as tables,
        plan.columns.open(),
    ):

        def work(index: int) -> None:
            clicks = encode_unit(plan, index, tables, progress)
            plan.stage.write_record(plan.units[index].unit.name, clicks)

        threads, _ = share_budget(job.memory_limit, job.threads, STREAM_BYTES)
        for _ in run_units(missing, work, threads, progress):
            pass


def check_encode_memory(memory_limit: int, dictionaries: Dictionaries) -> None:
    """Refuses dictionaries that do not fit.

    Raises:
        PreprocError: they need more than the limit leaves.
    """
    needed = binding.DICTIONARY_BYTES_PER_CATEGORY * sum(dictionaries.kept)
    free = free_budget(memory_limit)
    if needed + STREAM_BYTES > free:
        raise memory_error(memory_limit, memory_limit - free + needed + STREAM_BYTES, REMEDIES)


def encode_unit(
    plan: EncodePlan,
    index: int,
    tables: ctypes.Array[ctypes.c_void_p],
    progress: Progress,
) -> dict[Split, int]:
    """Writes the rows of one unit; the columns must be open.

    Args:
        plan: what to do.
        index: number of the unit.
        tables: the dictionaries, opened.
        progress: counters to move on.

    Returns:
        The clicks in each split.

    Raises:
        PreprocError: the input changed since it was scanned.
    """
    unit, first = plan.units[index], plan.first_rows[index]
    targets = plan.columns.targets(first, first + unit.result.rows)
    with binding.Encoder(
        dictionaries=tables,
        semantics=plan.semantics,
        targets=[target for _, target in targets],
        progress=progress,
    ) as encoder:
        feed_unit(encoder, unit.unit)
        rows, clicks = encoder.finish()
    if rows != unit.result.rows:
        raise PreprocError(
            f"{unit.unit.file.path}: held {unit.result.rows} valid rows at first, now "
            f"{rows}; do not change the input while it is prepared, and start again"
        )
    positives = dict.fromkeys(SPLITS, 0)
    for (split, _), count in zip(targets, clicks, strict=True):
        positives[split] += count
    return positives
