# SPDX-License-Identifier: Apache-2.0
"""Python side of the Criteo kernel: typed classes over its C interface.

A call gives up the interpreter lock while it runs, so threads of one process use all cores. The
classes here own their handle: use them as context managers.
"""

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from preproc.criteo.columns import EncodeTarget
from preproc.criteo.engines.native.kernel.shared_library import (
    LineTooLongError,
    RawEncodeTarget,
    RawMergeResult,
    RawNumericalRule,
    RawRun,
    RawRunSlice,
    RawScanSummary,
    check,
    is_built,
    kernel_version,
    load,
    made,
)
from preproc.criteo.rules import REJECT_REASONS, CriteoSemantics, RejectReason
from preproc.files.progress import Progress

__all__ = [
    "DICTIONARY_BYTES_PER_CATEGORY",
    "EncodeTarget",
    "Encoder",
    "LineTooLongError",
    "MergeResult",
    "Run",
    "ScanResult",
    "Scanner",
    "is_built",
    "kernel_version",
    "merge_runs",
    "open_dictionaries",
]

NO_LIMIT = 2**64 - 1

RUN_ENTRY = np.dtype("<u8")
"""Entry of a sorted run: scrambled category << 32 | count."""

REJECTED_HEADER = np.dtype(
    [("offset", "<u8"), ("line", "<u8"), ("length", "<u4"), ("reason", "<u4")]
)
"""What precedes the bytes of each row in a rejects file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A sorted run of one column, by entries from the start of its file."""

    column: int
    first_entry: int
    entries: int


@dataclasses.dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scanned text holds; `lines` counts good and bad rows."""

    rows: int
    positives: int
    lines: int
    text_bytes: int
    rejected: dict[RejectReason, int]
    runs: tuple[Run, ...]


class _Reader:
    """Feeds text to an open handle, from memory or from a range of a file."""

    _kind: str

    def __init__(self, handle: int | None) -> None:
        self._handle: int | None = made(handle)

    def feed(self, text: bytes) -> None:
        """Reads a piece of the text; a row may go on in the next piece."""
        check(getattr(load(), f"criteo_{self._kind}_text")(self._handle, text, len(text)))

    def feed_file(self, fd: int, begin: int, end: int) -> None:
        """Reads bytes [begin, end) of an open file."""
        check(getattr(load(), f"criteo_{self._kind}_file")(self._handle, fd, begin, end))

    def close(self) -> None:
        """Frees the memory of the handle."""
        if self._handle is not None:
            getattr(load(), f"criteo_{self._kind}_close")(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Scanner(_Reader):
    """Validates rows and counts their categories.

    Args:
        modulus: categories are taken modulo this; None keeps them.
        table_bytes: memory for counts; what does not fit becomes another sorted run.
        row_limit: valid rows to read.
        runs_fd: file that takes the sorted runs.
        rejects_fd: file that takes the bad rows, or -1.
        offset: where the text begins in its file.
        progress: counters to move on.
    """

    _kind = "scan"

    def __init__(
        self,
        *,
        modulus: int | None,
        table_bytes: int,
        runs_fd: int,
        rejects_fd: int = -1,
        row_limit: int = NO_LIMIT,
        offset: int = 0,
        progress: Progress,
    ) -> None:
        self._progress = progress  # the kernel holds its address
        super().__init__(
            load().criteo_scan_open(
                modulus or 0,
                table_bytes,
                row_limit,
                runs_fd,
                rejects_fd,
                offset,
                ctypes.addressof(progress),
            )
        )

    def finish(self) -> ScanResult:
        """Ends the text and writes out the remaining counts."""
        summary = RawScanSummary()
        check(load().criteo_scan_finish(self._handle, ctypes.byref(summary)))
        runs = (RawRun * summary.num_runs)()
        load().criteo_scan_runs(self._handle, runs)
        return ScanResult(
            rows=summary.rows,
            positives=summary.positives,
            lines=summary.lines,
            text_bytes=summary.bytes,
            rejected=dict(zip(REJECT_REASONS, summary.rejected, strict=True)),
            runs=tuple(Run(r.column, r.first_entry, r.entries) for r in runs),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MergeResult:
    """Categories kept and seen; no dictionary was written if `needed_bytes` exceeds the budget."""

    kept: int
    distinct: int
    needed_bytes: int


def merge_runs(
    runs: Sequence[npt.NDArray[np.uint64]],
    *,
    frequency_limit: int,
    budget_bytes: int,
    dictionary_fd: int,
    progress: Progress,
) -> MergeResult:
    """Merges the sorted runs of one column and writes its dictionary.

    Args:
        runs: entries of each run (mapped files will do).
        frequency_limit: categories seen fewer times are left out.
        budget_bytes: memory to use at most.
        dictionary_fd: file that takes the categories, uint32 in id order.
        progress: counters to move on.
    """
    slices = (RawRunSlice * len(runs))(*(RawRunSlice(r.ctypes.data, len(r)) for r in runs))
    result = RawMergeResult()
    check(
        load().criteo_merge(
            slices,
            len(runs),
            frequency_limit,
            budget_bytes,
            dictionary_fd,
            ctypes.addressof(progress),
            ctypes.byref(result),
        )
    )
    return MergeResult(result.kept, result.distinct, result.needed_bytes)


DICTIONARY_BYTES_PER_CATEGORY = 16
"""Memory of a dictionary while rows are encoded."""


@contextlib.contextmanager
def open_dictionaries(
    dictionaries: Sequence[npt.NDArray[np.uint32]],
) -> Iterator[ctypes.Array[ctypes.c_void_p]]:
    """Builds the lookup tables of all columns, for use by any number of encoders."""
    handles = (ctypes.c_void_p * len(dictionaries))()
    try:
        for i, categories in enumerate(dictionaries):
            values = np.ascontiguousarray(categories, np.uint32)
            handles[i] = made(load().criteo_dictionary_open(values.ctypes.data, len(values)))
        yield handles
    finally:
        for handle in handles:
            if handle is not None:
                load().criteo_dictionary_close(handle)


class Encoder(_Reader):
    """Turns rows into the columns of a dataset.

    Args:
        dictionaries: from `open_dictionaries`, of all columns.
        semantics: modulus and rule for numerical features.
        targets: where rows go; ascending, disjoint.
        progress: counters to move on.
    """

    _kind = "encode"

    def __init__(
        self,
        *,
        dictionaries: ctypes.Array[ctypes.c_void_p],
        semantics: CriteoSemantics,
        targets: Sequence[EncodeTarget],
        progress: Progress,
    ) -> None:
        self._keep_alive = (dictionaries, progress)  # the kernel holds their addresses
        self._targets = (RawEncodeTarget * len(targets))()
        for raw, target in zip(self._targets, targets, strict=True):
            for name in ("first_row", "rows", "out_row", "label_fd", "float16_fd", "float32_fd"):
                setattr(raw, name, getattr(target, name))
            raw.categorical_fds[:] = target.categorical_fds
            raw.id_bytes[:] = target.id_bytes
        rule = RawNumericalRule(
            semantics.numerical_offset,
            semantics.numerical_min,
            semantics.numerical_missing == "output_zero",
        )
        super().__init__(
            load().criteo_encode_open(
                dictionaries,
                semantics.category_modulus or 0,
                ctypes.byref(rule),
                self._targets,
                len(targets),
                ctypes.addressof(progress),
            )
        )

    def finish(self) -> tuple[int, list[int]]:
        """Writes out what is buffered; returns rows read and clicks per target."""
        rows = ctypes.c_uint64()
        check(load().criteo_encode_finish(self._handle, ctypes.byref(rows)))
        return rows.value, [target.positives for target in self._targets]
