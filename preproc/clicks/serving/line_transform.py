# SPDX-License-Identifier: Apache-2.0
"""Transforms raw lines in memory to the features of a dataset."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from preproc.clicks.kernel import shared_library
from preproc.clicks.rules import REJECT_REASONS
from preproc.clicks.schema.row_format import MAX_FEATURES, NUM_CATEGORICAL, NUM_NUMERICAL
from preproc.files.errors import KernelError, PreprocError
from recsys.errors import BadRowError
from recsys.installation import command_for


class Features(NamedTuple):
    """Features of rows.

    Attributes:
        numerical: [B, 13] float32.
        ids: [B, F] int64.
    """

    numerical: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]


class LineTransform:
    """Transforms lines by the rules and dictionaries of a dataset; not thread-safe.

    Args:
        path: a file of `write_feature_file`, mapped and shared with other processes.

    Attributes:
        cardinalities: number of ids of each column.

    Raises:
        PreprocError: the file is missing or damaged, or the kernel is not built.
    """

    def __init__(self, path: Path) -> None:
        self._handle: int | None = None
        if not shared_library.is_built():
            raise PreprocError(
                f"raw lines need the native kernel, which {command_for('kernels')} adds"
            )
        self._library = shared_library.load()
        try:
            handle = self._library.clicks_transform_open(str(path).encode())
            self._handle = shared_library.check_handle(handle)
        except KernelError as error:
            raise PreprocError(f"{path}: {error}; deploy the checkpoint again") from error
        categories = (ctypes.c_uint64 * MAX_FEATURES)()
        count = self._library.clicks_transform_columns(self._handle, categories)
        self.cardinalities = tuple(size + 1 for size in categories[:count])

    def transform(self, lines: Sequence[bytes]) -> Features:
        """Transforms lines without a label, of 39 fields.

        Args:
            lines: one row each; a line feed at the end is ignored.

        Raises:
            BadRowError: a line is no valid row; names field and value.
        """
        count = len(lines)
        text = b"\n".join(lines)
        if b"\n" in text[-1:] or text.count(b"\n") != count - 1:
            lines = [line.removesuffix(b"\n") for line in lines]
            for number, line in enumerate(lines):
                if b"\n" in line:
                    raise BadRowError(number, "holds a line feed; send a line for each row")
            text = b"\n".join(lines)
        numerical = np.empty((count, NUM_NUMERICAL), np.float32)
        ids = np.empty((count, len(self.cardinalities)), np.int64)
        rejected = shared_library.RawRejectedLine()
        # The last line may be empty: its line feed makes it a line.
        text += b"\n"
        status = self._library.clicks_transform_lines(
            *(self._handle, text, len(text), count),
            *(numerical.ctypes.data, ids.ctypes.data, ctypes.addressof(rejected)),
        )
        if status == shared_library.REJECTED:
            raise BadRowError(
                rejected.line,
                _explanation(lines[rejected.line], REJECT_REASONS[rejected.reason], rejected.field),
            )
        try:
            shared_library.check(status)
        except shared_library.LineTooLongError as error:
            number = text.count(b"\n", 0, error.offset)
            raise BadRowError(number, "is longer than any row") from error
        return Features(numerical, ids)

    def close(self) -> None:
        """Unmaps the file."""
        if self._handle is not None:
            self._library.clicks_transform_close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Unmaps the file of an instance that was not closed."""
        self.close()


_SHOWN_BYTES = 40


def field_name(field: int) -> str:
    """Returns Criteo's name of a field: I1 to I13, C1 to C26."""
    return f"I{field}" if field <= NUM_NUMERICAL else f"C{field - NUM_NUMERICAL}"


def _explanation(line: bytes, reason: str, field: int) -> str:
    if reason == "columns":
        count = NUM_NUMERICAL + NUM_CATEGORICAL
        return f"has {field} fields, expected {count} separated by tabs, without a label"
    fields = line.removesuffix(b"\r").split(b"\t")
    value = fields[field - 1]
    shown = value[:_SHOWN_BYTES].decode("ascii", "backslashreplace")
    expected = {
        "integer": "an integer of 32 bits, or nothing if it is missing",
        "hex": "up to 8 hexadecimal digits, or nothing if it is missing",
        "encoding": "printable ASCII",
    }[reason]
    return f"field {field_name(field)}: {shown!r} is refused ({reason}): expected {expected}"
