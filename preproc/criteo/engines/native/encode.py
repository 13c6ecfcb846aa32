# SPDX-License-Identifier: Apache-2.0
"""Stage 3 of the native engine: rows to columns."""

import contextlib
import ctypes
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from preproc.criteo.engine import (
    DICTIONARY_FOLDER,
    EncodedColumns,
    EngineJob,
    dictionary_path,
)
from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.engines.native.merge import Dictionaries, rows_per_file
from preproc.criteo.engines.native.scan import ScannedInput, ScannedUnit
from preproc.criteo.engines.native.units import STREAM_BYTES, feed_unit
from preproc.criteo.rules import (
    NUM_NUMERICAL,
    REMEDIES,
    SPLITS,
    CriteoSemantics,
    Split,
    split_bounds,
)
from preproc.files.budget import free_budget, memory_error, run_units, share_budget
from preproc.files.errors import PreprocError
from preproc.files.input_file import open_fd
from preproc.files.progress import Progress
from preproc.files.workspace import boot_id, read_record, settings_key, write_record
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryWriter


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
    job, semantics = engine_job.job, engine_job.job.semantics
    bounds = split_bounds(rows_per_file(scanned), semantics)
    key = settings_key(
        {
            "scan": scanned.folder.name,
            "merge": dictionaries.key,
            "splits": bounds,
            "format": sorted(job.format),
            "numerical": [
                semantics.numerical_offset,
                semantics.numerical_min,
                semantics.numerical_missing,
            ],
        }
    )
    return EncodePlan(
        stage=EncodeStage(staging_folder(engine_job, key), job.format),
        spec=FeatureSpec.criteo(dictionaries.cardinalities),
        semantics=semantics,
        bounds=bounds,
        units=scanned.units,
        first_rows=scanned.first_rows,
    )


def finish_encode(plan: "EncodePlan", dictionaries: Dictionaries) -> EncodedInput:
    """Completes the staged dataset once every unit is encoded."""
    rows = {split: last - first for split, (first, last) in plan.bounds.items()}
    records = [plan.stage.record(u.unit.name) or {} for u in plan.units]
    _copy_dictionaries(dictionaries, plan.stage.dataset)
    return EncodedInput(
        plan.stage.dataset,
        rows,
        {split: sum(r["positives"][split] for r in records) for split in SPLITS},
        EncodedColumns(plan.stage.columns, plan.stage.float32),
    )


class EncodeStage:
    """Places below the staging folder of one encoding."""

    def __init__(self, folder: Path, formats: tuple[str, ...]) -> None:
        self.dataset = folder / "dataset"
        self.columns = self.dataset if "split" in formats else folder / "columns"
        self.float32 = folder / "float32" if "parquet" in formats else None
        self.records = folder / "records"
        self.dataset.mkdir(exist_ok=True)
        self.records.mkdir(exist_ok=True)

    def record(self, unit: str) -> dict[str, Any] | None:
        """Returns what was counted in a unit that is encoded, else None."""
        return read_record(self.records / f"{unit}.json")

    def write_record(self, unit: str, positives: dict[Split, int]) -> None:
        """Marks a unit as encoded; `positives` are its clicks in each split."""
        write_record(self.records / f"{unit}.json", {"positives": positives})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncodePlan:
    """What encoding needs to know; may be sent to another process.

    Attributes:
        stage: where things go.
        spec: the columns.
        semantics: modulus and rule for numerical features.
        bounds: global rows of each split.
        units: every unit, in row order.
        first_rows: global number of each unit's first row.
    """

    stage: EncodeStage
    spec: FeatureSpec
    semantics: CriteoSemantics
    bounds: dict[Split, tuple[int, int]]
    units: tuple[ScannedUnit, ...]
    first_rows: tuple[int, ...]

    def missing(self) -> list[int]:
        """Returns the numbers of the units that are not encoded yet."""
        return [i for i, u in enumerate(self.units) if self.stage.record(u.unit.name) is None]


def staging_folder(engine_job: EngineJob, key: str) -> Path:
    """Returns the staging folder, emptied if the machine went down since it was used.

    Units are written without waiting for the disk: a killed process loses nothing, but after a
    crash of the machine a unit marked as done may lack bytes.
    """
    folder = engine_job.workspace.staging_dir(key)
    mark = folder / "boot.json"
    boot = boot_id()
    if boot == "" or read_record(mark) != {"boot": boot}:
        shutil.rmtree(folder)
        folder.mkdir()
        write_record(mark, {"boot": boot})
    return folder


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
        open_outputs(plan) as outputs,
    ):

        def work(index: int) -> None:
            clicks = encode_unit(plan, index, tables, outputs, progress)
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
    outputs: "Outputs",
    progress: Progress,
) -> dict[Split, int]:
    """Writes the rows of one unit at their places.

    Args:
        plan: what to do.
        index: number of the unit.
        tables: the dictionaries, opened.
        outputs: from `open_outputs`.
        progress: counters to move on.

    Returns:
        The clicks in each split.

    Raises:
        PreprocError: the input changed since it was scanned.
    """
    unit, first = plan.units[index], plan.first_rows[index]
    targets = _targets(outputs, plan.bounds, plan.spec, first, first + unit.result.rows)
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


Outputs = dict[Split, tuple[int, int, int, tuple[int, ...]]]
"""Descriptors of each split: label, float16, float32 (or -1), categorical."""


@contextlib.contextmanager
def open_outputs(plan: EncodePlan) -> Iterator[Outputs]:
    """Opens the column files of all splits, in their full size."""
    stage = plan.stage
    with contextlib.ExitStack() as stack:
        outputs: Outputs = {}
        for split, (first, last) in plan.bounds.items():
            writer = SplitBinaryWriter(stage.columns / split, plan.spec, last - first)
            stack.enter_context(writer)
            label, float16, categorical = writer.file_descriptors()
            float32 = -1
            if stage.float32 is not None:
                stage.float32.mkdir(exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT
                float32 = stack.enter_context(open_fd(stage.float32 / split, flags))
                os.ftruncate(float32, (last - first) * NUM_NUMERICAL * 4)
            outputs[split] = (label, float16, float32, tuple(categorical))
        yield outputs


def _targets(
    outputs: Outputs,
    bounds: dict[Split, tuple[int, int]],
    spec: FeatureSpec,
    first: int,
    last: int,
) -> list[tuple[Split, binding.EncodeTarget]]:
    """Returns where global rows [first, last) go, in row order."""
    id_bytes = tuple(f.dtype.itemsize for f in spec.categorical)
    targets: list[tuple[Split, binding.EncodeTarget]] = []
    for split, (begin, end) in sorted(bounds.items(), key=lambda item: item[1]):
        start, stop = max(first, begin), min(last, end)
        if start >= stop:
            continue
        label, float16, float32, categorical = outputs[split]
        target = binding.EncodeTarget(
            first_row=start - first,
            rows=stop - start,
            out_row=start - begin,
            label_fd=label,
            float16_fd=float16,
            float32_fd=float32,
            categorical_fds=categorical,
            id_bytes=id_bytes,
        )
        targets.append((split, target))
    return targets


def _copy_dictionaries(dictionaries: Dictionaries, dataset: Path) -> None:
    (dataset / DICTIONARY_FOLDER).mkdir(exist_ok=True)
    for column, path in enumerate(dictionaries.paths):
        shutil.copyfile(path, dictionary_path(dataset, column))
