# SPDX-License-Identifier: Apache-2.0
"""Reads ratings with the kernel; same values as preproc/clicks/schema/rating_fields.py."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from preproc.clicks.kernel.binding import REJECTED_HEADER, Reader
from preproc.clicks.kernel.packed_format import packed_format
from preproc.clicks.kernel.shared_library import RatingColumns, RatingCounts, check, load
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.row_format import RowFormat
from recsys.data.arrow_columns import column_of

_DTYPES: dict[str, Any] = {"numbers": np.int32, "ends": np.int32, "bytes": np.uint8}


class RatingRows(NamedTuple):
    """Rows of a text.

    Attributes:
        users: [valid rows].
        items: [valid rows].
        ratings: [valid rows] float64.
        times: [valid rows] int64; keys for floats, see `order_key` of rating_fields.py.
        rejected: byte offset, line number and bytes of each rejected row.
        lines: number of lines of the text so far.
    """

    users: pa.DictionaryArray
    items: pa.DictionaryArray
    ratings: Any
    times: Any
    rejected: list[tuple[int, int, bytes]]
    lines: int


class RatingReader(Reader):
    """Reads the rows of a text to columns, by a format whose columns have roles of ratings."""

    def __init__(self, row_format: RowFormat, offset: int = 0) -> None:
        """Opens a reader of the text from the byte `offset` of a file on."""
        packed = packed_format(row_format, ClicksSemantics())
        super().__init__(load().clicks_ratings_open(packed, len(packed), offset, None))

    def finish(self) -> None:
        """Ends the text."""
        check(load().clicks_ratings_finish(self._handle))

    def take(self) -> RatingRows:
        """Returns what was read since the last call."""
        counts, columns = RatingCounts(), RatingColumns()
        load().clicks_ratings_counts(self._handle, ctypes.byref(counts))
        sizes = {"numbers": (counts.rows,) * 2, "ends": counts.texts, "bytes": counts.text_bytes}
        made = {
            name: [np.empty(size, _DTYPES[name]) for size in of_ids]
            for name, of_ids in sizes.items()
        }
        for name, arrays in made.items():
            for i, array in enumerate(arrays):
                getattr(columns, name)[i] = array.ctypes.data
        ratings, times = np.empty(counts.rows), np.empty(counts.rows, np.int64)
        rejected = np.empty(counts.rejected_bytes, np.uint8)
        columns.ratings, columns.times = ratings.ctypes.data, times.ctypes.data
        columns.rejected = rejected.ctypes.data
        load().clicks_ratings_take(self._handle, ctypes.byref(columns))
        ids = [
            pa.DictionaryArray.from_arrays(column_of(numbers), _texts(ends, text))
            for numbers, ends, text in zip(*made.values(), strict=True)
        ]
        users, items = ids
        records = _rejected(rejected.tobytes())
        return RatingRows(users, items, ratings, times, records, counts.lines)


def _texts(ends: Any, text: Any) -> pa.Array:
    offsets = np.append(np.int32(0), ends).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def _rejected(records: bytes) -> list[tuple[int, int, bytes]]:
    rows, at = [], 0
    while at < len(records):
        header: Any = np.frombuffer(records, REJECTED_HEADER, 1, at)[0]
        at += REJECTED_HEADER.itemsize
        end = at + int(header["length"])
        rows.append((int(header["offset"]), int(header["line"]) + 1, records[at:end]))
        at = end
    return rows
