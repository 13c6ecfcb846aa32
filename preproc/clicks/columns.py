# SPDX-License-Identifier: Apache-2.0
"""Columns of a staged dataset: folders, writer and reader.

A global row number counts the valid rows of the whole input, from 0.
"""

import contextlib
import dataclasses
import os
import threading
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from preproc.clicks.dictionaries import Dictionaries
from preproc.clicks.engine import EncodedColumns, EngineJob, EngineResult, FileRows
from preproc.clicks.job import ClicksJob
from preproc.clicks.kernel.shared_library import EncodeTarget
from preproc.clicks.layouts.lists import ListFds, join_lists, unit_files
from preproc.clicks.rules import SPLITS, Bounds, Split
from preproc.clicks.schema.row_format import Edges
from preproc.files.input_file import open_fd
from preproc.files.quarantine import QUARANTINE_FILE, RejectedRow, write_quarantine
from preproc.files.workspace import marked_files, read_record, write_record
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.positioned_io import DiskSync, map_array, write_at
from recsys.data.split_binary import SplitBinaryReader, SplitBinaryWriter
from recsys.data.split_layout import GROUP_DTYPE, GROUP_FILE

Ranges = Sequence[tuple[int, int]]
"""First row and end of each range, as global row numbers."""

_FLOAT32 = np.dtype("<f4")


class EncodeStage:
    """Folders of the encode stage, and records of its finished units.

    Attributes:
        key: name of the folder, a hash of everything that its contents depend on.
        dataset: the staged dataset.
        columns: see `EncodedColumns.folder`.
        float32: see `EncodedColumns`.
        lists: folder for the lists of each unit until they are joined.
        has_groups: rows have groups, in a file next to the columns.
    """

    def __init__(self, folder: Path, job: ClicksJob) -> None:
        self.key = folder.name
        self.dataset = folder / "dataset"
        is_format = job.layout == "nvidia" and "split" in job.format
        self.columns = self.dataset if is_format else folder / "columns"
        is_only_format = is_format and len(job.format) == 1
        schema = job.semantics.schema
        has_float32 = schema is not None and schema.numbers == "float32"
        self.has_groups = schema is not None and any(column.group for column in schema.columns)
        self.float32 = None if is_only_format or has_float32 else folder / "float32"
        self.lists = folder / "lists"
        self.lists.mkdir(exist_ok=True)
        self._records = folder / "records"
        self.dataset.mkdir(exist_ok=True)
        self._records.mkdir(exist_ok=True)

    def record(self, unit: str) -> dict[str, Any] | None:
        """Returns the record of a unit; None if it is not encoded yet."""
        return read_record(self.record_path(unit))

    def record_path(self, unit: str) -> Path:
        """Returns the file that marks a unit as encoded."""
        return self._records / f"{unit}.json"

    def clicks(self, units: Iterable[str]) -> dict[Split, int]:
        """Returns the clicks of each split, from the records of all units."""
        records = [self.record(unit) or {} for unit in units]
        return {split: sum(r["positives"][split] for r in records) for split in SPLITS}

    def finish(
        self,
        *,
        engine: dict[str, Any],
        files: tuple[FileRows, ...],
        bounds: Bounds,
        clicks: dict[Split, int],
        dictionaries: Dictionaries,
        rejected: Iterable[RejectedRow],
        edges: Edges = types.MappingProxyType({}),
        is_shuffled: bool = False,
    ) -> EngineResult:
        """Adds dictionaries and quarantine file; returns the engine's result.

        See `EngineResult` and `EncodedColumns` for the arguments; `rejected` is in input order.
        """
        dictionaries.copy_to(self.dataset)
        if any(sum(file.rejected.values()) for file in files):
            write_quarantine(self.dataset / QUARANTINE_FILE, rejected)
        return EngineResult(
            dataset=self.dataset,
            engine=engine,
            files=files,
            rows={split: last - first for split, (first, last) in bounds.items()},
            positives=clicks,
            cardinalities=dictionaries.cardinalities,
            columns=EncodedColumns(self.columns, self.float32, is_shuffled),
            edges=edges,
        )


def open_stage(engine_job: EngineJob, dictionaries: Dictionaries, **own: object) -> EncodeStage:
    """Opens the folders of the encode stage; removes those of other settings.

    All later stages work in them too, so their key covers every setting of the dataset. `own` are
    JSON values that the engine's units also depend on.
    """
    job = engine_job.job
    key = engine_job.key(
        "encode",
        semantics=dataclasses.asdict(job.semantics),
        dictionaries=dictionaries.key,
        format=sorted(job.format),
        layout=job.layout,
        **own,
    )
    return EncodeStage(engine_job.workspace.staging_dir(key), job)


class SplitColumnsWriter:
    """Writes rows of all splits by their global numbers; thread-safe.

    Can be pickled and sent to another process. Files are open only inside the context of `open`;
    each process opens them once, even if several threads enter the context.
    """

    def __init__(self, stage: EncodeStage, spec: FeatureSpec, bounds: Bounds) -> None:
        self._stage, self._spec, self._bounds = stage, spec, bounds
        self._float32_row_bytes = _FLOAT32.itemsize * len(spec.numerical)
        self._writers: dict[Split, SplitBinaryWriter] = {}
        self._float32: dict[Split, int] = {}
        self._groups: dict[Split, int] = {}
        self._marked: list[Path] = []
        self._files = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._users = 0

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the arguments without the open files."""
        return SplitColumnsWriter, (self._stage, self._spec, self._bounds)

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        """Opens the files of all splits at their full size."""
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
        with contextlib.ExitStack() as closing:
            self._further_disk = DiskSync()
            self._marked = []
            files = closing.enter_context(marked_files(self._marked))
            for split, (begin, end) in self._bounds.items():
                writer = SplitBinaryWriter(self._stage.columns / split, self._spec, end - begin)
                self._writers[split] = files.enter_context(writer)
                if self._stage.float32 is not None:
                    self._stage.float32.mkdir(exist_ok=True)
                    opened = open_fd(self._stage.float32 / split, os.O_RDWR | os.O_CREAT)
                    self._float32[split] = files.enter_context(opened)
                    os.ftruncate(self._float32[split], (end - begin) * self._float32_row_bytes)
                if self._stage.has_groups:
                    path = self._stage.columns / split / GROUP_FILE
                    opened = open_fd(path, os.O_RDWR | os.O_CREAT)
                    self._groups[split] = files.enter_context(opened)
                    os.ftruncate(self._groups[split], (end - begin) * GROUP_DTYPE.itemsize)
            self._files = closing.pop_all()

    def _ranges(self, rows: Ranges) -> Iterator[tuple[Split, int, int, int]]:
        """Cuts ranges of global rows at the bounds of the splits.

        Yields each split with the first row and the end within that split, and how many rows of
        the range come before them.
        """
        for split, (begin, end) in sorted(self._bounds.items(), key=lambda item: item[1]):
            for first, last in rows:
                start, stop = max(first, begin), min(last, end)
                if start < stop:
                    yield split, start - begin, stop - begin, start - first

    def write(
        self, first_row: int, rows: ClickColumns, groups: npt.NDArray[np.int64] | None = None
    ) -> dict[Split, int]:
        """Writes rows from a global row number on; returns the clicks of each split."""
        clicks = dict.fromkeys(SPLITS, 0)
        for split, out_row, end, before in self._ranges([(first_row, first_row + len(rows))]):
            chosen = rows[before : before + end - out_row]
            self._writers[split].write(out_row, chosen)
            if split in self._float32:
                values: npt.NDArray[Any] = chosen.numerical.astype(_FLOAT32, copy=False)
                write_at(self._float32[split], values, out_row * self._float32_row_bytes)
            if split in self._groups and groups is not None:
                values = groups[before : before + end - out_row].astype(GROUP_DTYPE, copy=False)
                write_at(self._groups[split], values, out_row * GROUP_DTYPE.itemsize)
            clicks[split] = int(np.count_nonzero(chosen.label))
        return clicks

    def join_lists(self, units: Sequence[str]) -> None:
        """Joins the lists of all units, in the order of the rows."""
        rows = {split: end - begin for split, (begin, end) in self._bounds.items()}
        join_lists(self._stage.lists, units, rows, self._spec, self._stage.columns)

    def finish_unit(self, unit: str, rows: Ranges, clicks: dict[Split, int]) -> None:
        """Marks a unit as encoded once its ranges of global rows are on disk."""
        for split, *_ in self._ranges(rows):
            self._writers[split].sync()
            for files in (self._float32, self._groups):
                if split in files:
                    self._further_disk.sync([files[split]])
        record = self._stage.record_path(unit)
        write_record(record, {"positives": clicks})
        self._marked.append(record)

    @contextlib.contextmanager
    def unit_targets(self, unit: str, rows: Ranges) -> Iterator[list[tuple[Split, EncodeTarget]]]:
        """Opens the files for the ranges of global rows of a unit."""
        splits = {split: None for split, *_ in self._ranges(rows)}
        with unit_files(self._stage.lists, unit, splits, self._spec) as lists:
            yield self._targets(rows, lists)

    def _targets(
        self, rows: Ranges, lists: Mapping[Split, Sequence[ListFds]]
    ) -> list[tuple[Split, EncodeTarget]]:
        targets = []
        for split, start, stop, before in self._ranges(rows):
            label, numerical, categorical = self._writers[split].file_descriptors()
            is_float16 = self._spec.numerical_dtype == "float16"
            target = EncodeTarget(
                first_row=before,
                rows=stop - start,
                out_row=start,
                label_fd=label,
                float16_fd=numerical if is_float16 else -1,
                float32_fd=self._float32.get(split, -1) if is_float16 else numerical,
                list_fds=tuple(lists.get(split, ())),
                group_fd=self._groups.get(split, -1),
                categorical_fds=tuple(categorical),
                split=SPLITS.index(split),
                id_bytes=tuple(f.dtype.itemsize for f in self._spec.categorical),
            )
            targets.append((split, target))
        return targets


class ColumnsReader(contextlib.ExitStack):
    """Reads memory-mapped rows; threads share one reader and its open files.

    The numerical features of the encoded columns must be float32, in a separate file or in the
    columns themselves.
    """

    def __init__(
        self, columns: EncodedColumns, spec: FeatureSpec, splits: Iterable[Split] = SPLITS
    ) -> None:
        super().__init__()
        assert columns.float32 is not None or spec.numerical_dtype == "float32"
        self._readers, self._numerical = {}, {}
        for split in splits:
            reader = SplitBinaryReader(columns.folder, split, spec, access="memmap")
            self._readers[split] = self.enter_context(contextlib.closing(reader))
            if columns.float32 is not None:
                shape = (reader.num_rows, len(spec.numerical))
                self._numerical[split] = map_array(columns.float32 / split, _FLOAT32, shape)

    def read(
        self, split: Split, ranges: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[int, ClickColumns]]:
        """Yields chunks of rows of a split, each with the number of its first row.

        `ranges` are the first row and end of each chunk, counted within the split.
        """
        for start, stop in ranges:
            narrow = self._readers[split].read(start, stop)
            exact = self._numerical.get(split)
            numerical = narrow.numerical if exact is None else exact[start:stop]
            yield start, ClickColumns(narrow.label, numerical, narrow.categorical)
