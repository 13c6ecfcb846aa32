# SPDX-License-Identifier: Apache-2.0
"""Shuffles column files on disk: a bucket sort by shuffle keys.

A record is a row's key and its values of all columns, side by side. A bucket is the set of rows
whose keys have the same top bits. There are two passes:

buckets  for each unit of rows: makes the records, orders them by bucket, writes them to a file
shuffle  for each bucket: reads its records from all files, sorts them by key in memory, and writes
         the values to the bucket's rows of the new columns

All reads and writes are long, and memory is bounded by one unit or bucket per thread. A unit's file
and a bucket's record are complete if they exist, so an interrupted shuffle can be resumed. Keys
depend only on row numbers: the new order depends neither on the sizes of units and buckets nor on
threads.
"""

import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preproc.clicks.rules import shuffle_keys
from preproc.files.budget import free_budget, run_units, share_budget
from preproc.files.errors import CancelledError as CancelledError
from preproc.files.input_file import open_fd
from preproc.files.progress import Progress, ProgressReporter
from preproc.files.workspace import atomic_file, marked_files, write_record
from recsys.data.positioned_io import DiskSync, map_array, read_array, write_at

LEAST_UNIT_ROWS = 1 << 18
"""Rows of a unit, and the most rows of an average bucket, unless the input is very large."""

_MARKED_ROWS = 1 << 22
"""Rows of the buckets that are synced together, so that little time is spent on disk waits."""

_READ_ROWS = 1024
"""Least rows of a bucket in a unit's file, on average: 80 kB, so that seeks do not dominate."""

_CHUNK_ROWS = 1 << 13
"""Rows converted to or from records at once: 650 kB of records, for the cache."""

_WORK_ROW_BYTES = 40
"""Memory per row of a unit or bucket in addition to its record: key, order, temporary arrays."""

_THREAD_BYTES = 8 * 2**20
"""Memory of a thread for chunks, and for buckets larger than the average one."""

_MAX_BUCKETS_LOG2 = 16  # NumPy sorts 16-bit numbers by radix
_COUNT = np.dtype("<u8")
_WORD = np.dtype("<u8")


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnFile:
    """A file of fixed-width values, one per row, and its shuffled copy."""

    source: Path
    target: Path


def shuffle_columns(
    columns: Sequence[ColumnFile],
    num_rows: int,
    seed: int,
    folder: Path,
    memory_limit: int,
    threads: int,
    reporter: ProgressReporter,
) -> None:
    """Writes the rows of all columns in the order of `shuffle_keys`.

    Args:
        columns: files of `num_rows` values each.
        num_rows: at least 1; rows are numbered from 0.
        seed: in [0, 2**64), for `shuffle_keys`.
        folder: work folder of only these files and this seed; a shuffle in it is resumed.
        memory_limit: bytes of anonymous memory of the whole process.
        threads: the most threads to use.
        reporter: shows the two passes.

    Raises:
        PreprocError: the memory limit is too small.
    """
    row_bytes = [column.source.stat().st_size // num_rows for column in columns]
    record = record_dtype(row_bytes)
    unit_rows = choose_unit_rows(num_rows, record.itemsize, free_budget(memory_limit))
    state = folder / f"units_of_{unit_rows}_rows"
    for other in folder.iterdir():
        if other != state:  # left by a run with much more or much less memory
            shutil.rmtree(other)
    plan = _Plan(tuple(columns), record, num_rows, seed, unit_rows, state)
    _run(plan, memory_limit, threads, reporter)


def record_dtype(row_bytes: Sequence[int]) -> np.dtype[np.void]:
    """Returns the dtype of a record: fields `key`, `0`, `1`, ... .

    Every field is aligned, without gaps, and the size is a multiple of 8 bytes, which NumPy copies
    fastest.
    """
    coarsest_first = sorted(range(len(row_bytes)), key=lambda i: -(row_bytes[i] & -row_bytes[i]))
    fields = [("key", "<u8"), *((str(i), _value_type(row_bytes[i])) for i in coarsest_first)]
    return np.dtype(fields, align=True)


def _value_type(row_bytes: int) -> str:
    return f"u{row_bytes}" if row_bytes in (1, 2, 4, 8) else f"V{row_bytes}"


def choose_unit_rows(num_rows: int, record_bytes: int, free_bytes: int) -> int:
    """Chooses the rows of a unit: enough for long reads, and within a thread's memory."""
    rows = LEAST_UNIT_ROWS
    while rows * rows < num_rows * _READ_ROWS:
        rows *= 2
    while (
        unit_memory(rows, record_bytes) > free_bytes and rows // 2 > num_rows >> _MAX_BUCKETS_LOG2
    ):
        rows //= 2
    return rows


def unit_memory(unit_rows: int, record_bytes: int) -> int:
    """Returns the memory in bytes for one unit or bucket."""
    return unit_rows * (record_bytes + _WORK_ROW_BYTES) + _THREAD_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """Units, buckets and work files of one shuffle."""

    columns: tuple[ColumnFile, ...]
    record: np.dtype[np.void]
    num_rows: int
    seed: int
    unit_rows: int
    folder: Path

    @property
    def units(self) -> int:
        return -(-self.num_rows // self.unit_rows)

    @property
    def buckets_log2(self) -> int:
        return (self.units - 1).bit_length()

    @property
    def buckets(self) -> int:
        return 1 << self.buckets_log2

    def rows_of_unit(self, unit: int) -> range:
        first = unit * self.unit_rows
        return range(first, min(first + self.unit_rows, self.num_rows))

    def unit_path(self, unit: int) -> Path:
        return self.folder / f"unit_{unit:06d}.bin"

    def bucket_path(self, bucket: int) -> Path:
        return self.folder / f"bucket_{bucket:06d}.json"

    def row_bytes(self, column: int) -> int:
        return self.record[str(column)].itemsize


def _run(plan: _Plan, memory_limit: int, threads: int, reporter: ProgressReporter) -> None:
    """Runs both passes over the missing units and buckets."""
    buckets = [b for b in range(plan.buckets) if not plan.bucket_path(b).exists()]
    if not buckets:
        return
    least = unit_memory(plan.unit_rows, plan.record.itemsize)
    threads, _ = share_budget(memory_limit, threads, least)

    def one_pass(
        name: str,
        rows: list[int],
        missing: list[int],
        work: Callable[[int, Progress], None],
        mark: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        progress = Progress()
        progress.rows = plan.num_rows - sum(rows[i] for i in missing)
        size = plan.record.itemsize
        total = plan.num_rows * size
        unmarked: list[int] = []
        with reporter.stage(name, total, lambda: (progress.rows * size, progress.rows)):
            try:
                for index, _ in run_units(missing, lambda i: work(i, progress), threads, progress):
                    progress.rows += rows[index]
                    unmarked.append(index)
                    if sum(rows[i] for i in unmarked) >= _MARKED_ROWS:
                        mark(unmarked)
                        unmarked = []
            finally:
                mark(unmarked)

    plan.folder.mkdir(exist_ok=True)
    unit_rows = [len(plan.rows_of_unit(u)) for u in range(plan.units)]
    units = [u for u in range(plan.units) if not plan.unit_path(u).exists()]
    with _UnitWriter(plan) as unit_writer:
        one_pass("buckets", unit_rows, units, unit_writer.write)
    paths = [plan.bucket_path(bucket) for bucket in buckets]
    with marked_files(paths) as files:
        writer = files.enter_context(_BucketWriter(plan))
        one_pass("shuffle", writer.bucket_rows, buckets, writer.write, writer.mark)
    for unit in range(plan.units):
        plan.unit_path(unit).unlink()


class _UnitWriter(contextlib.ExitStack):
    """Writes a unit's file: the number of rows of each bucket, then the records by bucket."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self._plan = plan
        self._sources = [self.enter_context(open_fd(column.source)) for column in plan.columns]

    def write(self, unit: int, progress: Progress) -> None:
        plan, rows = self._plan, self._plan.rows_of_unit(unit)
        keys = shuffle_keys(plan.seed, np.arange(rows.start, rows.stop, dtype=np.uint64))
        buckets = _bucket_of(keys, plan.buckets_log2)
        counts = np.bincount(buckets, minlength=plan.buckets).astype(_COUNT)
        order = np.argsort(buckets, kind="stable")
        records = np.empty(len(rows), plan.record)
        records["key"] = keys
        del keys, buckets
        for chunk in _chunks(len(rows), progress):
            self._fill(records[chunk], rows.start + chunk.start)
        words = _as_words(records)
        with atomic_file(plan.unit_path(unit)) as file:
            file.write(counts.data)
            for chunk in _chunks(len(rows), progress):
                file.write(words.take(order[chunk], axis=0).data)

    def _fill(self, records: npt.NDArray[np.void], first_row: int) -> None:
        """Reads the values of the rows from `first_row` into their records."""
        for i, (column, fd) in enumerate(zip(self._plan.columns, self._sources, strict=True)):
            values = records[str(i)]
            offset = first_row * values.itemsize
            values[:] = read_array(fd, column.source, values.dtype, offset, len(values))


class _BucketWriter(contextlib.ExitStack):
    """Writes a bucket to its rows of the new columns."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self._plan = plan
        counts, self._units = [], []
        for unit in range(plan.units):
            path = plan.unit_path(unit)
            counts.append(map_array(path, _COUNT, (plan.buckets,)))
            shape = (len(plan.rows_of_unit(unit)), plan.record.itemsize // _WORD.itemsize)
            header = plan.buckets * _COUNT.itemsize
            self._units.append(map_array(path, _WORD, shape, header))
        table = np.stack(counts).astype(np.int64)
        self._ends = table.cumsum(axis=1)
        self._starts = self._ends - table
        self.bucket_rows: list[int] = table.sum(axis=0).tolist()
        self._first_rows = [0, *itertools.accumulate(self.bucket_rows)]
        self._disk, self._targets = DiskSync(), []
        for i, column in enumerate(plan.columns):
            fd = self.enter_context(open_fd(column.target, os.O_WRONLY | os.O_CREAT))
            os.ftruncate(fd, plan.num_rows * plan.row_bytes(i))
            self._targets.append(fd)

    def write(self, bucket: int, progress: Progress) -> None:
        ranges = zip(self._units, self._starts[:, bucket], self._ends[:, bucket], strict=True)
        words = np.concatenate([unit[start:end] for unit, start, end in ranges])
        order = np.argsort(words[:, 0])  # the keys; no two are equal
        for chunk in _chunks(len(words), progress):
            taken = words.take(order[chunk], axis=0)
            records = taken.reshape(-1).view(self._plan.record)
            row = self._first_rows[bucket] + chunk.start
            for i, fd in enumerate(self._targets):
                write_at(fd, records[str(i)], row * self._plan.row_bytes(i))

    def mark(self, buckets: Sequence[int]) -> None:
        """Marks buckets as written, once their rows are on disk."""
        self._disk.sync(self._targets)
        for bucket in buckets:
            write_record(self._plan.bucket_path(bucket), {"rows": self.bucket_rows[bucket]})


def _bucket_of(keys: npt.NDArray[np.uint64], buckets_log2: int) -> npt.NDArray[np.uint16]:
    """Returns the bucket of each key: its top `buckets_log2` bits."""
    if buckets_log2 == 0:
        return np.zeros(len(keys), np.uint16)  # a shift by all 64 bits is not defined
    return (keys >> np.uint64(64 - buckets_log2)).astype(np.uint16)


def _as_words(records: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Returns records as rows of 8-byte words, which NumPy copies faster."""
    return records.view(_WORD).reshape(len(records), -1)


def _chunks(rows: int, progress: Progress) -> Iterator[slice]:
    """Cuts a number of rows into chunks, until the run is cancelled."""
    for start in range(0, rows, _CHUNK_ROWS):
        if progress.stop:
            raise CancelledError("the shuffle was cancelled")
        yield slice(start, min(start + _CHUNK_ROWS, rows))
