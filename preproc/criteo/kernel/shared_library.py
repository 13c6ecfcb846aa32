# SPDX-License-Identifier: Apache-2.0
"""Loads the Criteo kernel and declares the C interface of criteo_kernel.cpp."""

import ctypes
import functools
from pathlib import Path

from preproc.criteo.rules import NUM_CATEGORICAL, NUM_NUMERICAL, REJECT_REASONS
from preproc.files.errors import CancelledError, KernelError

LIBRARY = Path(__file__).with_name("criteo_kernel.so")

_CANCELLED, _LINE_TOO_LONG = -2, -3
REJECTED = -4
MAX_COLUMNS = NUM_CATEGORICAL + NUM_NUMERICAL


class LineTooLongError(KernelError):
    """A line is longer than any Criteo row.

    Attributes:
        offset: first byte of the line in the text of its file.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class RawErrorReport(ctypes.Structure):
    """struct ErrorReport."""

    _fields_ = (("message", ctypes.c_char_p), ("offset", ctypes.c_uint64))


class RawRun(ctypes.Structure):
    """struct Run."""

    _fields_ = (
        ("column", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("first_entry", ctypes.c_uint64),
        ("entries", ctypes.c_uint64),
    )


class RawScanSummary(ctypes.Structure):
    """struct ScanSummary."""

    _fields_ = (
        ("rows", ctypes.c_uint64),
        ("positives", ctypes.c_uint64),
        ("lines", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("rejected", ctypes.c_uint64 * len(REJECT_REASONS)),
        ("num_runs", ctypes.c_uint64),
    )


class RawRunSlice(ctypes.Structure):
    """struct RunSlice."""

    _fields_ = (("entries", ctypes.c_void_p), ("count", ctypes.c_uint64))


class RawMergeResult(ctypes.Structure):
    """struct MergeResult."""

    _fields_ = (
        ("kept", ctypes.c_uint64),
        ("distinct", ctypes.c_uint64),
        ("needed_bytes", ctypes.c_uint64),
    )


class RawRowRule(ctypes.Structure):
    """struct RowRule."""

    _fields_ = (
        ("modulus", ctypes.c_uint64),
        ("bins_numerical", ctypes.c_uint64),
        ("numerical_minimum", ctypes.c_int64),
        ("has_label", ctypes.c_uint64),
    )


class RawNumericalRule(ctypes.Structure):
    """struct NumericalRule."""

    _fields_ = (
        ("offset", ctypes.c_int64),
        ("minimum", ctypes.c_int64),
        ("missing_is_zero_after", ctypes.c_uint64),
    )


class RawEncodeTarget(ctypes.Structure):
    """struct EncodeTarget."""

    _fields_ = (
        ("first_row", ctypes.c_uint64),
        ("rows", ctypes.c_uint64),
        ("out_row", ctypes.c_uint64),
        ("positives", ctypes.c_uint64),
        ("label_fd", ctypes.c_int32),
        ("float16_fd", ctypes.c_int32),
        ("float32_fd", ctypes.c_int32),
        ("categorical_fds", ctypes.c_int32 * MAX_COLUMNS),
        ("id_bytes", ctypes.c_uint8 * MAX_COLUMNS),
    )


class RawRejectedLine(ctypes.Structure):
    """struct RejectedLine."""

    _fields_ = (
        ("line", ctypes.c_uint64),
        ("reason", ctypes.c_uint32),
        ("field", ctypes.c_uint32),
    )


_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "criteo_last_error": (None, (ctypes.c_void_p,)),
    "criteo_kernel_version": (ctypes.c_int, ()),
    "criteo_scan_open": (
        ctypes.c_void_p,
        (
            ctypes.c_void_p,
            *(ctypes.c_uint64,) * 2,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_void_p,
        ),
    ),
    "criteo_scan_text": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64)),
    "criteo_scan_file": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    ),
    "criteo_scan_finish": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
    "criteo_scan_runs": (None, (ctypes.c_void_p, ctypes.c_void_p)),
    "criteo_scan_checksum": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "criteo_scan_close": (None, (ctypes.c_void_p,)),
    "criteo_merge": (
        ctypes.c_int,
        (
            ctypes.c_void_p,
            *(ctypes.c_uint64,) * 3,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ),
    ),
    "criteo_dictionary_open": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_uint64)),
    "criteo_dictionary_close": (None, (ctypes.c_void_p,)),
    "criteo_encode_open": (
        ctypes.c_void_p,
        (
            *(ctypes.c_void_p,) * 4,
            ctypes.c_uint64,
            ctypes.c_void_p,
        ),
    ),
    "criteo_encode_text": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64)),
    "criteo_encode_file": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    ),
    "criteo_encode_finish": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
    "criteo_encode_checksum": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "criteo_encode_close": (None, (ctypes.c_void_p,)),
    "criteo_transform_open": (ctypes.c_void_p, (ctypes.c_char_p,)),
    "criteo_transform_columns": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
    "criteo_transform_lines": (
        ctypes.c_int,
        (
            ctypes.c_void_p,
            ctypes.c_char_p,
            *(ctypes.c_uint64,) * 2,
            *(ctypes.c_void_p,) * 3,
        ),
    ),
    "criteo_transform_close": (None, (ctypes.c_void_p,)),
}


@functools.cache
def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """Loads the kernel.

    Raises:
        OSError: it is not built, or was built for another machine or from other sources.
    """
    library = ctypes.CDLL(str(path))
    missing = [name for name in _SIGNATURES if not hasattr(library, name)]
    if missing:
        raise OSError(f"{path}: was built from other sources (no {missing[0]}); build it again")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
    return library


def is_built() -> bool:
    """Returns True if the kernel can be loaded."""
    try:
        load()
    except OSError:
        return False
    return True


def kernel_version() -> int:
    """Returns the version of the kernel's work files."""
    return int(load().criteo_kernel_version())


def check(status: int) -> None:
    """Raises the error of a call that returned `status`, if not 0."""
    if status == 0:
        return
    message, offset = _last_error()
    if status == _LINE_TOO_LONG:
        raise LineTooLongError(message, offset)
    raise (CancelledError if status == _CANCELLED else KernelError)(message)


def _last_error() -> tuple[str, int]:
    """Returns message and byte offset of the last error of this thread."""
    report = RawErrorReport()
    load().criteo_last_error(ctypes.byref(report))
    return report.message.decode(errors="replace"), report.offset


def check_handle(handle: int | None) -> int:
    """Returns the handle, or raises the error of its call."""
    if handle is None:
        raise KernelError(_last_error()[0])
    return handle
