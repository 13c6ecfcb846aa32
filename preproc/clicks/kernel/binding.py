# SPDX-License-Identifier: Apache-2.0
"""Typed Python classes over the C interface of the Criteo kernel.

Calls release the interpreter lock, so threads of one process can use all cores. The classes own a
handle of the kernel, so use them as context managers.
"""

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from preproc.clicks.dictionaries import Dictionaries, Keys
from preproc.clicks.kernel.packed_format import packed_format
from preproc.clicks.kernel.shared_library import (
    EncodeTarget,
    LineTooLongError,
    RawMergeResult,
    RawRun,
    RawRunSlice,
    RawScanSummary,
    check,
    check_handle,
    is_built,
    kernel_version,
    load,
)
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.grammar import REJECT_REASONS, RejectReason
from preproc.clicks.schema.row_format import KEY_TYPES, KeyType, RowFormat
from preproc.files.progress import Progress

__all__ = [
    "EncodeTarget",
    "Encoder",
    "LineTooLongError",
    "ScanResult",
    "Scanner",
    "SortedRun",
    "dictionary_bytes",
    "dictionary_bytes_of",
    "is_built",
    "kernel_version",
    "merge_runs",
    "open_dictionaries",
]

NO_LIMIT = 2**64 - 1

RUN_WORD = np.dtype("<u8")
"""Word of a sorted run; count_table.h describes the entries."""

REJECTED_HEADER = np.dtype(
    [("offset", "<u8"), ("line", "<u8"), ("length", "<u4"), ("reason", "<u4")]
)
"""Header of each rejected row in a rejects file; the bytes of the row follow."""


@dataclasses.dataclass(frozen=True, slots=True)
class SortedRun:
    """A sorted run of one column, a range in its file."""

    column: int
    first_word: int
    words: int


@dataclasses.dataclass(frozen=True, slots=True)
class ScanResult:
    """Counts and runs of a scanned text; `lines` counts rejected rows too."""

    rows: int
    positives: int
    lines: int
    text_bytes: int
    checksum: int
    rejected: dict[RejectReason, int]
    runs: tuple[SortedRun, ...]
    split_rows: tuple[int, ...]
    split_values: tuple[int, int]


class Reader:
    """Feeds text to an open handle, from memory or a file."""

    def __init__(self, handle: int | None) -> None:
        self._handle: int | None = check_handle(handle)

    def feed(self, text: bytes) -> None:
        """Reads a block of text, which may end inside a row."""
        check(load().clicks_read_text(self._handle, text, len(text)))

    @property
    def is_done(self) -> bool:
        """Whether all wanted rows were read; more text then has no effect."""
        return bool(load().clicks_read_done(self._handle))

    def feed_file(self, fd: int, begin: int, end: int) -> None:
        """Reads bytes [begin, end) of an open file."""
        check(load().clicks_read_file(self._handle, fd, begin, end))

    def checksum(self) -> int:
        """Returns the checksum of the text; how it was cut into blocks makes no difference."""
        return int(load().clicks_read_checksum(self._handle))

    def close(self) -> None:
        """Frees the memory of the handle."""
        if self._handle is not None:
            load().clicks_read_close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Scanner(Reader):
    """Validates rows and counts their categories.

    Args:
        semantics: gives modulus and bins.
        row_format: fields of a row.
        table_bytes: memory for counts; when it is full, they are written as a sorted run.
        runs_fd: file for the sorted runs.
        rejects_fd: file for the rejected rows; -1 drops them.
        row_limit: the most valid rows to read.
        offset: byte of the file at which the text begins.
        progress: counters to advance.
    """

    def __init__(
        self,
        *,
        semantics: ClicksSemantics,
        row_format: RowFormat,
        table_bytes: int,
        runs_fd: int,
        rejects_fd: int = -1,
        row_limit: int = NO_LIMIT,
        offset: int = 0,
        progress: Progress,
    ) -> None:
        packed = packed_format(row_format, semantics)
        self._keep_alive = progress  # the kernel holds its address
        super().__init__(
            load().clicks_scan_open(
                packed,
                len(packed),
                table_bytes,
                row_limit,
                runs_fd,
                rejects_fd,
                offset,
                ctypes.addressof(progress),
            )
        )

    def finish(self) -> ScanResult:
        """Ends the text and writes the remaining counts as runs."""
        summary = RawScanSummary()
        check(load().clicks_scan_finish(self._handle, ctypes.byref(summary)))
        runs = (RawRun * summary.num_runs)()
        load().clicks_scan_runs(self._handle, runs)
        return ScanResult(
            rows=summary.rows,
            positives=summary.positives,
            lines=summary.lines,
            text_bytes=summary.bytes,
            checksum=self.checksum(),
            rejected=dict(zip(REJECT_REASONS, summary.rejected, strict=True)),
            runs=tuple(SortedRun(r.column, r.first_word, r.words) for r in runs),
            split_rows=tuple(summary.split_rows),
            split_values=(summary.split_values[0], summary.split_values[1]),
        )


def merge_runs(
    runs: Sequence[npt.NDArray[np.uint64]],
    *,
    key_type: KeyType = "uint32",
    limits: tuple[int, int],
    budget_bytes: int,
    known: int | None = None,
    keys_fd: int,
    ends_fd: int = -1,
    counts_fd: int = -1,
    progress: Progress,
) -> RawMergeResult:
    """Merges the sorted runs of one column and writes its dictionary.

    Args:
        runs: words of each run; may be memory-mapped files.
        key_type: type of the categories.
        limits: least occurrences of a kept category, and the most ids (0: no limit).
        budget_bytes: the most memory to use.
        known: lookup table of the categories that have an id already; they are left out.
        keys_fd: file for the kept categories, in id order; they are appended.
        ends_fd: file for the end of each text; only if the categories are texts.
        counts_fd: file for the counts of categories without an id; -1 leaves them out.
        progress: counters to advance.
    """
    slices = (RawRunSlice * len(runs))(*(RawRunSlice(r.ctypes.data, len(r)) for r in runs))
    result = RawMergeResult()
    check(
        load().clicks_merge(
            *(slices, len(runs), *limits, budget_bytes),
            *(KEY_TYPES.index(key_type), known, keys_fd, ends_fd, counts_fd),
            ctypes.addressof(progress),
            ctypes.byref(result),
        )
    )
    return result


_BYTES_PER_CATEGORY: dict[KeyType, int] = {"uint32": 16, "int64": 128, "text": 128}


def dictionary_bytes(dictionaries: Dictionaries) -> int:
    """Returns the memory of the lookup tables of all columns."""
    columns = zip(dictionaries.key_types, dictionaries.kept, strict=True)
    return sum(_BYTES_PER_CATEGORY[key_type] * kept for key_type, kept in columns)


def dictionary_bytes_of(keys: Keys) -> int:
    """Returns the memory of the lookup table of a column."""
    return _BYTES_PER_CATEGORY[keys.type] * len(keys)


@contextlib.contextmanager
def open_dictionaries(
    dictionaries: Sequence[Keys],
) -> Iterator[ctypes.Array[ctypes.c_void_p]]:
    """Builds the lookup tables of all columns; encoders may share them.

    Tables of keys wider than 32 bits hold addresses into `dictionaries`, which must outlive them.
    """
    handles = (ctypes.c_void_p * len(dictionaries))()
    try:
        for i, keys in enumerate(dictionaries):
            handle = load().clicks_dictionary_open(
                *(KEY_TYPES.index(keys.type), keys.values.ctypes.data, keys.values.nbytes),
                *(None if keys.ends is None else keys.ends.ctypes.data, len(keys)),
            )
            handles[i] = check_handle(handle)
        yield handles
    finally:
        for handle in handles:
            if handle is not None:
                load().clicks_dictionary_close(handle)


class Encoder(Reader):
    """Encodes rows and writes them to the columns of a dataset.

    Args:
        dictionaries: lookup tables of all columns, from `open_dictionaries`.
        semantics: gives modulus, bins and transform of numerical features.
        row_format: fields of a row.
        targets: row ranges and their files; the ranges are ascending and disjoint.
        offset: byte of the file at which the text begins.
        progress: counters to advance.
    """

    def __init__(
        self,
        *,
        dictionaries: ctypes.Array[ctypes.c_void_p],
        semantics: ClicksSemantics,
        row_format: RowFormat,
        targets: Sequence[EncodeTarget],
        offset: int = 0,
        progress: Progress,
    ) -> None:
        packed = packed_format(row_format, semantics)
        self._keep_alive = (dictionaries, progress)  # the kernel holds their addresses
        self._targets = (EncodeTarget * len(targets))(*targets)
        super().__init__(
            load().clicks_encode_open(
                dictionaries,
                packed,
                len(packed),
                self._targets,
                len(targets),
                offset,
                ctypes.addressof(progress),
            )
        )

    def finish(self) -> tuple[int, list[int]]:
        """Writes the buffered rows; returns the rows read, and the clicks of each target."""
        rows = ctypes.c_uint64()
        check(load().clicks_encode_finish(self._handle, ctypes.byref(rows)))
        return rows.value, [target.positives for target in self._targets]
