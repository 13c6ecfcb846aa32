# SPDX-License-Identifier: Apache-2.0
"""Columns of a staged dataset: their folders, and the one writer and reader of their rows."""

import contextlib
import dataclasses
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from preproc.criteo.engine import EncodedColumns, EngineJob
from preproc.criteo.rules import NUM_NUMERICAL, SPLITS, Split
from preproc.files.input_file import open_fd
from preproc.files.workspace import boot_id, read_record, settings_key, write_record
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.positioned_io import write_at
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter

Bounds = dict[Split, tuple[int, int]]
"""Global numbers of the first row and the end of each split."""

_FLOAT32 = np.dtype("<f4")
_FLOAT32_ROW_BYTES = _FLOAT32.itemsize * NUM_NUMERICAL


class EncodeStage:
    """Folders of one encoding, and the records of the units that are encoded.

    Args:
        folder: made for this encoding alone; exists.
        formats: those that the dataset is to have.

    Attributes:
        key: name of the folder.
        dataset: the staged dataset.
        columns: split-binary columns, a folder per split.
        float32: folder with a file per split, its numerical features as float32; None where no
            format needs them.
    """

    def __init__(self, folder: Path, formats: tuple[str, ...]) -> None:
        self.key = folder.name
        self.dataset = folder / "dataset"
        self.columns = self.dataset if "split" in formats else folder / "columns"
        self.float32 = folder / "float32" if "parquet" in formats else None
        self._records = folder / "records"
        self.dataset.mkdir(exist_ok=True)
        self._records.mkdir(exist_ok=True)

    def record(self, unit: str) -> dict[str, Any] | None:
        """Returns what was counted in a unit that is encoded, else None."""
        return read_record(self._records / f"{unit}.json")

    def write_record(self, unit: str, clicks: dict[Split, int]) -> None:
        """Marks a unit as encoded; `clicks` are its clicks in each split."""
        write_record(self._records / f"{unit}.json", {"positives": clicks})

    def clicks(self, units: Iterable[str]) -> dict[Split, int]:
        """Returns the clicks of each split, from the records of all units."""
        records = [self.record(unit) or {} for unit in units]
        return {split: sum(r["positives"][split] for r in records) for split in SPLITS}

    def encoded(self) -> EncodedColumns:
        """Returns the columns for later stages, rows in input order."""
        return EncodedColumns(self.columns, self.float32)


def open_stage(engine_job: EngineJob, depends: Mapping[str, object], bounds: Bounds) -> EncodeStage:
    """Returns the staging of one encoding; that of other settings is removed.

    It is emptied if the machine went down since it was used: units are written without waiting for
    the disk, so a killed process loses nothing, but after a crash of the machine a unit marked as
    done may lack bytes.

    Args:
        engine_job: its formats and the rule for numerical features count.
        depends: all else that rows depend on.
        bounds: rows of each split.
    """
    job, semantics = engine_job.job, engine_job.job.semantics
    key = settings_key(
        {
            **depends,
            "splits": bounds,
            "format": sorted(job.format),
            "numerical": [
                semantics.numerical_offset,
                semantics.numerical_min,
                semantics.numerical_missing,
            ],
        }
    )
    folder = engine_job.workspace.staging_dir(key)
    mark = folder / "boot.json"
    boot = boot_id()
    if boot == "" or read_record(mark) != {"boot": boot}:
        shutil.rmtree(folder)
        folder.mkdir()
        write_record(mark, {"boot": boot})
    return EncodeStage(folder, job.format)


@dataclasses.dataclass(frozen=True, slots=True)
class EncodeTarget:
    """Rows [first_row, first_row + rows) of a text go to rows from `out_row` on of these files.

    Attributes:
        first_row: counted over the valid rows of the text.
        rows: how many.
        out_row: row of the output files that takes the first one.
        label_fd: bool, one byte each.
        float16_fd: numerical features, row-major.
        float32_fd: the same as float32, or -1.
        categorical_fds: one file per column.
        id_bytes: 1, 2 or 4 for each column.
    """

    first_row: int
    rows: int
    out_row: int
    label_fd: int
    float16_fd: int
    float32_fd: int
    categorical_fds: tuple[int, ...]
    id_bytes: tuple[int, ...]


class SplitColumnsWriter:
    """Writes rows of all splits under their global numbers, from any number of threads.

    May be sent to another process. Its files are open within `open` alone, once in a process
    however often it is entered.

    Args:
        stage: where the columns are.
        spec: the columns.
        bounds: rows of each split.
    """

    def __init__(self, stage: EncodeStage, spec: FeatureSpec, bounds: Bounds) -> None:
        self._stage, self._spec, self._bounds = stage, spec, bounds
        self._writers: dict[Split, SplitBinaryWriter] = {}
        self._float32: dict[Split, int] = {}
        self._files = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._users = 0

    def __reduce__(self) -> tuple[object, ...]:
        """Leaves the files behind when it is sent to another process."""
        return SplitColumnsWriter, (self._stage, self._spec, self._bounds)

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        """Opens the files of all splits, in their full size."""
        with self._lock:
            if self._users == 0:
                self._open_files()
            self._users += 1
        try:
            yield self
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._files.close()

    def _open_files(self) -> None:
        with contextlib.ExitStack() as files:
            for split, (begin, end) in self._bounds.items():
                writer = SplitBinaryWriter(self._stage.columns / split, self._spec, end - begin)
                self._writers[split] = files.enter_context(writer)
                if self._stage.float32 is not None:
                    self._stage.float32.mkdir(exist_ok=True)
                    opened = open_fd(self._stage.float32 / split, os.O_RDWR | os.O_CREAT)
                    self._float32[split] = files.enter_context(opened)
                    os.ftruncate(self._float32[split], (end - begin) * _FLOAT32_ROW_BYTES)
            self._files = files.pop_all()

    def _ranges(self, first: int, last: int) -> Iterator[tuple[Split, int, int]]:
        """Yields which of the global rows [first, last) are in each split, in row order."""
        for split, (begin, end) in sorted(self._bounds.items(), key=lambda item: item[1]):
            start, stop = max(first, begin), min(last, end)
            if start < stop:
                yield split, start, stop

    def write(self, first_row: int, rows: ClickColumns) -> dict[Split, int]:
        """Writes rows with float32 features; returns their clicks in each split.

        Args:
            first_row: global number of the first.
            rows: consecutive rows.
        """
        clicks = dict.fromkeys(SPLITS, 0)
        for split, start, stop in self._ranges(first_row, first_row + len(rows)):
            chosen = rows[start - first_row : stop - first_row]
            out_row = start - self._bounds[split][0]
            self._writers[split].write(out_row, chosen)
            if split in self._float32:
                values: npt.NDArray[Any] = chosen.numerical.astype(_FLOAT32, copy=False)
                write_at(self._float32[split], values, out_row * _FLOAT32_ROW_BYTES)
            clicks[split] = int(np.count_nonzero(chosen.label))
        return clicks

    def targets(self, first: int, last: int) -> list[tuple[Split, EncodeTarget]]:
        """Returns the descriptors that take the global rows [first, last), in row order."""
        id_bytes = tuple(f.dtype.itemsize for f in self._spec.categorical)
        targets = []
        for split, start, stop in self._ranges(first, last):
            label, float16, categorical = self._writers[split].file_descriptors()
            target = EncodeTarget(
                first_row=start - first,
                rows=stop - start,
                out_row=start - self._bounds[split][0],
                label_fd=label,
                float16_fd=float16,
                float32_fd=self._float32.get(split, -1),
                categorical_fds=tuple(categorical),
                id_bytes=id_bytes,
            )
            targets.append((split, target))
        return targets


def read_rows(
    columns: EncodedColumns, split: Split, spec: FeatureSpec, ranges: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, ClickColumns]]:
    """Yields rows of a split with float32 features (mapped, not read).

    Args:
        columns: with float32 features.
        split: which one.
        spec: the columns.
        ranges: first row and end of each block.

    Yields:
        The first row of a block, and its rows.
    """
    assert columns.float32 is not None
    reader = SplitBinaryReader(columns.folder, split, spec, access="memmap")
    try:
        for start, stop in ranges:
            narrow = reader.read(start, stop)
            numerical = np.memmap(
                columns.float32 / split,
                dtype=_FLOAT32,
                mode="r",
                offset=start * _FLOAT32_ROW_BYTES,
                shape=(stop - start, NUM_NUMERICAL),
            )
            yield start, ClickColumns(narrow.label, numerical, narrow.categorical)
    finally:
        reader.close()
