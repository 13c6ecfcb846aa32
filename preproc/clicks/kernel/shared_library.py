# SPDX-License-Identifier: Apache-2.0
"""Loads the Criteo kernel and declares the C interface of clicks_kernel.cpp."""

import functools
from ctypes import (
    CDLL,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

from preproc.clicks.rules import SPLITS
from preproc.clicks.schema.grammar import REJECT_REASONS
from preproc.clicks.schema.row_format import MAX_FEATURES
from preproc.files.errors import CancelledError, KernelError

LIBRARY = Path(__file__).with_name("clicks_kernel.so")

_CANCELLED, _LINE_TOO_LONG = -2, -3
REJECTED = -4
_VERSION = 18
"""Version of the C interface and of the kernel's work files."""


class LineTooLongError(KernelError):
    """A line is longer than any Criteo row.

    Attributes:
        offset: first byte of the line in the text of its file.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class RawRun(Structure):
    """struct Run."""

    _fields_ = (
        ("column", c_uint32),
        ("first_word", c_uint64),
        ("words", c_uint64),
    )


class RawScanSummary(Structure):
    """struct ScanSummary."""

    _fields_ = (
        ("rows", c_uint64),
        ("positives", c_uint64),
        ("lines", c_uint64),
        ("bytes", c_uint64),
        ("rejected", c_uint64 * len(REJECT_REASONS)),
        ("num_runs", c_uint64),
        ("split_rows", c_uint64 * len(SPLITS)),
        ("split_values", c_uint64 * 2),
    )


class RawRunSlice(Structure):
    """struct RunSlice."""

    _fields_ = (("words", c_void_p), ("count", c_uint64))


class RawMergeResult(Structure):
    """struct MergeResult: counts of categories; above the budget, no dictionary was written."""

    _fields_ = (
        ("kept", c_uint64),
        ("distinct", c_uint64),
        ("needed_bytes", c_uint64),
    )
    kept: int
    distinct: int
    needed_bytes: int


class EncodeTarget(Structure):
    """A range of rows, and its files; see row_encoder.h."""

    _fields_ = (
        ("first_row", c_uint64),
        ("rows", c_uint64),
        ("out_row", c_uint64),
        ("positives", c_uint64),
        ("label_fd", c_int32),
        ("float16_fd", c_int32),
        ("float32_fd", c_int32),
        ("group_fd", c_int32),
        ("categorical_fds", c_int32 * MAX_FEATURES),
        ("id_bytes", c_uint8 * MAX_FEATURES),
        ("list_fds", c_int32 * 3 * MAX_FEATURES),
        ("split", c_uint32),
    )


class CellColumn(Structure):
    """A column of texts and its buffers; see row_writer.h."""

    _fields_ = (
        ("ends", c_void_p),
        ("text", c_void_p),
        ("text_bytes", c_uint64),
        ("texts", c_uint64),
        ("text_bits", c_void_p),
        ("first_text_bit", c_uint64),
        ("indices", c_void_p),
        ("index_bits", c_void_p),
        ("first_index_bit", c_uint64),
        ("is_wide", c_uint32),
        ("has_escapes", c_uint32),
    )


class RatingCounts(Structure):
    """struct RatingCounts."""

    _fields_ = (
        ("rows", c_uint64),
        ("texts", c_uint64 * 2),
        ("text_bytes", c_uint64 * 2),
        ("rejected_bytes", c_uint64),
        ("lines", c_uint64),
    )


class RatingColumns(Structure):
    """struct RatingColumns."""

    _fields_ = (
        ("numbers", c_void_p * 2),
        ("ends", c_void_p * 2),
        ("bytes", c_void_p * 2),
        ("ratings", c_void_p),
        ("times", c_void_p),
        ("rejected", c_void_p),
    )


_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "clicks_last_message": (c_char_p, ()),
    "clicks_last_offset": (c_uint64, ()),
    "clicks_kernel_version": (c_int, ()),
    "clicks_scan_open": (
        c_void_p,
        (c_char_p, c_uint64, c_uint64, c_uint64, c_int, c_int, c_uint64, c_void_p),
    ),
    "clicks_read_text": (c_int, (c_void_p, c_char_p, c_uint64)),
    "clicks_read_done": (c_int, (c_void_p,)),
    "clicks_read_file": (c_int, (c_void_p, c_int, c_uint64, c_uint64)),
    "clicks_scan_finish": (c_int, (c_void_p, c_void_p)),
    "clicks_scan_runs": (None, (c_void_p, c_void_p)),
    "clicks_read_checksum": (c_uint64, (c_void_p,)),
    "clicks_read_close": (None, (c_void_p,)),
    "clicks_ratings_open": (c_void_p, (c_char_p, c_uint64, c_uint64, c_void_p)),
    "clicks_ratings_finish": (c_int, (c_void_p,)),
    "clicks_ratings_counts": (None, (c_void_p, c_void_p)),
    "clicks_ratings_take": (None, (c_void_p, c_void_p)),
    "clicks_merge": (
        c_int,
        (
            *(c_void_p, c_uint64, c_uint64, c_uint64, c_uint64),
            *(c_uint32, c_void_p, c_int, c_int, c_int, c_void_p, c_void_p),
        ),
    ),
    "clicks_dictionary_open": (c_void_p, (c_uint32, c_void_p, c_uint64, c_void_p, c_uint64)),
    "clicks_dictionary_close": (None, (c_void_p,)),
    "clicks_encode_open": (
        c_void_p,
        (c_void_p, c_char_p, c_uint64, c_void_p, c_uint64, c_uint64, c_void_p),
    ),
    "clicks_encode_finish": (c_int, (c_void_p, c_void_p)),
    "clicks_measure_rows": (c_uint64, (c_void_p, c_uint64, c_uint64)),
    "clicks_write_rows": (c_uint64, (c_void_p, c_uint64, c_uint64, c_void_p)),
    "clicks_transform_open": (c_void_p, (c_char_p,)),
    "clicks_transform_shape": (None, (c_void_p, c_void_p)),
    "clicks_transform_columns": (None, (c_void_p, c_void_p)),
    "clicks_transform_rows": (
        c_int,
        (c_void_p, c_int, c_char_p, c_uint64, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "clicks_transform_close": (None, (c_void_p,)),
}


@functools.cache
def load(path: Path = LIBRARY) -> CDLL:
    """Loads the kernel.

    Raises:
        OSError: it is not built, or was built for another machine or from other sources.
    """
    library = CDLL(str(path))
    missing = [name for name in _SIGNATURES if not hasattr(library, name)]
    if missing or library.clicks_kernel_version() != _VERSION:
        raise OSError(f"{path}: was built from other sources; build it again")
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
    return int(load().clicks_kernel_version())


def check(status: int) -> None:
    """Raises the error of a call that returned `status`, unless it is 0."""
    if status == 0:
        return
    message = last_message()
    if status == _LINE_TOO_LONG:
        raise LineTooLongError(message, load().clicks_last_offset())
    raise (CancelledError if status == _CANCELLED else KernelError)(message)


def last_message() -> str:
    """Returns the message of the last error of this thread."""
    return bytes(load().clicks_last_message()).decode(errors="replace")


def check_handle(handle: int | None) -> int:
    """Returns the handle; raises the error of its call if it is None."""
    if handle is None:
        raise KernelError(last_message())
    return handle
