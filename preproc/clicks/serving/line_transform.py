# SPDX-License-Identifier: Apache-2.0
"""Transforms raw lines in memory to the features of a dataset."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from preproc.clicks.kernel import shared_library
from preproc.files.errors import KernelError, PreprocError
from preproc.files.raw.tables import escaped
from recsys.errors import BadRowError
from recsys.installation import command_for


class Features(NamedTuple):
    """Features of rows.

    Attributes:
        numerical: [B, M] float32.
        ids: [B, S] int64, one per single feature, then those of lists, each list padded with zeros
            to its greatest length.
        scale: [B, S - F] float32, the factor of each id of a list, 0 after its end.
    """

    numerical: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    scale: npt.NDArray[np.float32]


_LINE, _FIELDS = 0, 1
"""Forms of a row, as clicks_kernel.cpp numbers them."""


class LineTransform:
    """Transforms rows by the rules and dictionaries of a dataset; not thread-safe.

    Args:
        path: a file from `write_feature_file`; it is mapped and shared with other processes.

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
            raise PreprocError(
                f"{path}: {error}; deploy the checkpoint again", path=path
            ) from error
        shape = (ctypes.c_uint32 * 4)()
        self._library.clicks_transform_shape(self._handle, shape)
        self._num_numerical, columns, *self._slots = shape
        categories = (ctypes.c_uint64 * columns)()
        self._library.clicks_transform_columns(self._handle, categories)
        self.cardinalities = tuple(size + 1 for size in categories)

    def transform(self, lines: Sequence[bytes]) -> Features:
        """Transforms lines of the log without their label.

        Args:
            lines: the columns of the schema in schema order, or the 39 fields of a Criteo log; a
                line feed at the end is ignored.

        Raises:
            BadRowError: a line is not a valid row; names column and value.
        """
        count = len(lines)
        text = b"\n".join(lines)
        if b"\n" in text[-1:] or text.count(b"\n") != count - 1:
            lines = [line.removesuffix(b"\n") for line in lines]
            for number, line in enumerate(lines):
                if b"\n" in line:
                    raise BadRowError(number, "contains a line feed; send one line per row")
            text = b"\n".join(lines)
        return self._run(_LINE, text, count)

    def transform_fields(self, rows: Sequence[Sequence[bytes]]) -> Features:
        """Transforms rows that are given as texts of their features.

        Args:
            rows: a text per feature, in schema order; empty if it is missing.

        Raises:
            BadRowError: a text is not valid in its column; names column and value.
        """
        text = b"\n".join(b"\t".join(map(escaped, row)) for row in rows)
        return self._run(_FIELDS, text, len(rows))

    def _run(self, form: int, text: bytes, count: int) -> Features:
        numerical = np.empty((count, self._num_numerical), np.float32)
        slots, list_slots = self._slots
        ids = np.empty((count, slots), np.int64)
        scale = np.empty((count, list_slots), np.float32)
        rejected = ctypes.c_uint64()
        # The last line may be empty; the line feed makes it count as a line.
        text += b"\n"
        status = self._library.clicks_transform_rows(
            *(self._handle, form, text, len(text), count),
            *(numerical.ctypes.data, ids.ctypes.data, scale.ctypes.data, ctypes.byref(rejected)),
        )
        if status == shared_library.REJECTED:
            raise BadRowError(rejected.value, shared_library.last_message())
        try:
            shared_library.check(status)
        except shared_library.LineTooLongError as error:
            number = text.count(b"\n", 0, error.offset)
            raise BadRowError(number, "is longer than any row") from error
        return Features(numerical, ids, scale)

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
