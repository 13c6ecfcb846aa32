# SPDX-License-Identifier: Apache-2.0
"""Stage 3 of the native engine: rows to columns, and columns to parquet."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataspec.feature_spec import FeatureSpec
from dataspec.split_binary import SplitBinaryWriter
from preproc.criteo_engine import DICTIONARY_FOLDER, EngineJob, dictionary_path
from preproc.criteo_schema import NUM_NUMERICAL, SPLITS, Split, split_bounds
from preproc.errors import PreprocError
from preproc.input_file import open_fd
from preproc.native import binding
from preproc.native_merge import REMEDIES, Dictionaries, rows_per_file
from preproc.native_scan import ScannedInput, ScannedUnit
from preproc.native_units import (
    STREAM_BYTES,
    feed_unit,
    free_budget,
    memory_error,
    run_units,
    share_budget,
)
from preproc.workspace import boot_id, read_record, settings_key, write_record


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedInput:
    """The staged dataset, and rows and clicks of its splits."""

    dataset: Path
    rows: dict[Split, int]
    positives: dict[Split, int]


def encode(
    engine_job: EngineJob,
    scanned: ScannedInput,
    dictionaries: Dictionaries,
) -> EncodedInput:
    """Encodes every unit that was not encoded before, then writes parquet if asked for.

    Raises:
        PreprocError: the dictionaries do not fit the memory limit, or the input changed.
    """
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
    stage = _Stage(_staging(engine_job, key), job.format)
    spec = FeatureSpec.criteo(dictionaries.cardinalities)
    missing = [u for u in scanned.units if stage.record(u) is None]
    if missing:
        _encode_units(engine_job, scanned, dictionaries, spec, bounds, stage, missing)
    rows = {split: last - first for split, (first, last) in bounds.items()}
    if "parquet" in job.format:
        _write_parquet(engine_job, stage, spec, rows)
    records = [stage.record(u) or {} for u in scanned.units]
    _copy_dictionaries(dictionaries, stage.dataset)
    return EncodedInput(
        stage.dataset,
        rows,
        {split: sum(r["positives"][split] for r in records) for split in SPLITS},
    )


class _Stage:
    """Places below the staging folder of one encoding."""

    def __init__(self, folder: Path, formats: tuple[str, ...]) -> None:
        self.dataset = folder / "dataset"
        self.columns = self.dataset if "split" in formats else folder / "columns"
        self.float32 = folder / "float32" if "parquet" in formats else None
        self.records = folder / "records"
        self.dataset.mkdir(exist_ok=True)
        self.records.mkdir(exist_ok=True)

    def record_path(self, unit: ScannedUnit) -> Path:
        return self.records / f"{unit.unit.name}.json"

    def record(self, unit: ScannedUnit) -> dict[str, Any] | None:
        return read_record(self.record_path(unit))


def _staging(engine_job: EngineJob, key: str) -> Path:
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
    engine_job: EngineJob,
    scanned: ScannedInput,
    dictionaries: Dictionaries,
    spec: FeatureSpec,
    bounds: dict[Split, tuple[int, int]],
    stage: _Stage,
    missing: list[ScannedUnit],
) -> None:
    job = engine_job.job
    needed = binding.DICTIONARY_BYTES_PER_CATEGORY * sum(dictionaries.kept)
    free = free_budget(job.memory_limit)
    if needed + STREAM_BYTES > free:
        raise memory_error(
            job.memory_limit, job.memory_limit - free + needed + STREAM_BYTES, REMEDIES
        )
    first_rows = {
        scanned_unit.unit: first
        for scanned_unit, first in zip(scanned.units, scanned.first_rows, strict=False)
    }
    progress = binding.Progress()
    total = sum(u.result.text_bytes for u in scanned.units)
    progress.bytes = total - sum(u.result.text_bytes for u in missing)
    progress.rows = scanned.first_rows[-1] - sum(u.result.rows for u in missing)
    with (
        engine_job.reporter.stage("encode", total, lambda: (progress.bytes, progress.rows)),
        binding.open_dictionaries(dictionaries.load()) as tables,
        _open_outputs(stage, spec, bounds) as outputs,
    ):

        def work(unit: ScannedUnit) -> None:
            first = first_rows[unit.unit]
            targets = _targets(outputs, bounds, spec, first, first + unit.result.rows)
            with binding.Encoder(
                dictionaries=tables,
                semantics=job.semantics,
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
            write_record(stage.record_path(unit), {"positives": positives})

        threads, _ = share_budget(job.memory_limit, job.threads, STREAM_BYTES)
        for _ in run_units(missing, work, threads, progress):
            pass


Outputs = dict[Split, tuple[int, int, int, tuple[int, ...]]]
"""Descriptors of each split: label, float16, float32 (or -1), categorical."""


@contextlib.contextmanager
def _open_outputs(
    stage: _Stage, spec: FeatureSpec, bounds: dict[Split, tuple[int, int]]
) -> Iterator[Outputs]:
    with contextlib.ExitStack() as stack:
        outputs: Outputs = {}
        for split, (first, last) in bounds.items():
            writer = SplitBinaryWriter(stage.columns / split, spec, last - first)
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


def _write_parquet(
    engine_job: EngineJob, stage: _Stage, spec: FeatureSpec, rows: dict[Split, int]
) -> None:
    from preproc import criteo_parquet  # PyArrow, only for those who want parquet

    parts = [
        (path, split, index)
        for split in SPLITS
        for index, path in enumerate(criteo_parquet.part_paths(stage.dataset, split, rows[split]))
    ]
    progress = binding.Progress()
    float32 = stage.float32
    assert float32 is not None

    def work(part: tuple[Path, Split, int]) -> int:
        path, split, index = part
        groups = criteo_parquet.read_groups(stage.columns, float32 / split, split, spec, index)
        criteo_parquet.write_part(path, spec, groups)
        return sum(last - first for first, last in criteo_parquet.group_ranges(rows[split], index))

    limit = engine_job.job.memory_limit
    threads, _ = share_budget(limit, engine_job.job.threads, criteo_parquet.PART_BUFFER_BYTES)
    row_bytes = criteo_parquet.ROW_BYTES
    total = sum(rows.values()) * row_bytes
    with engine_job.reporter.stage("parquet", total, lambda: (progress.bytes, progress.rows)):
        missing = [p for p in parts if not p[0].exists()]
        for _, written in run_units(missing, work, threads, progress):
            progress.rows += written
            progress.bytes += written * row_bytes
    for scratch in {float32, stage.columns} - {stage.dataset}:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy_dictionaries(dictionaries: Dictionaries, dataset: Path) -> None:
    (dataset / DICTIONARY_FOLDER).mkdir(exist_ok=True)
    for column, path in enumerate(dictionaries.paths):
        shutil.copyfile(path, dictionary_path(dataset, column))
