# SPDX-License-Identifier: Apache-2.0
"""The default engine of ratings: works in memory with PyArrow and NumPy.

Peak memory is about 40 bytes per row that reaches `min_rating`, every raw id twice, and 200 MiB.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from preproc.files.progress import ProgressReporter
from preproc.ratings.format import ITEM, TIMESTAMP, USER
from preproc.ratings.job import RatingsJob
from preproc.ratings.parse import Interactions
from preproc.ratings.stages import FIRST_IDS, EngineRows, Ordered, order_ids, order_rows
from recsys.data.arrow_columns import column_of, numbers_of
from recsys.data.sequences.histories import RawIds

_SLICE_ROWS = 2**20
_MIN_PENDING = 2**20


def open_rows(
    _job: RatingsJob, _folder: Path, _reporter: ProgressReporter
) -> contextlib.AbstractContextManager[EngineRows]:
    """Returns an empty engine, which needs no start; see `OpenRows`."""
    return contextlib.nullcontext(ArrowRows())


class _IdColumn:
    """A column of raw ids, dictionary-encoded as it grows.

    Memory is 4 bytes per row, and each id once.
    """

    def __init__(self) -> None:
        self._values = pa.nulls(0, pa.string())
        self._codes: list[pa.Array] = [pa.nulls(0, pa.int32())]
        self._pending: list[pa.DictionaryArray] = []
        self._pending_values = 0

    def add(self, column: pa.ChunkedArray) -> None:
        """Appends rows, dictionary-encoded."""
        for chunk in column.chunks:
            self._pending.append(chunk)
            self._pending_values += len(chunk.dictionary)
        # Merging costs time for all ids so far; waiting until as many are pending keeps the total
        # linear.
        if self._pending_values > max(len(self._values), _MIN_PENDING):
            self._merge()

    def _merge(self) -> None:
        known = pa.DictionaryArray.from_arrays(pa.nulls(0, pa.int32()), self._values)
        # The dictionary begins with the known values, so that earlier codes stay valid.
        merged = pa.chunked_array([known, *self._pending]).unify_dictionaries()
        self._values = merged.chunk(0).dictionary
        self._codes += [c.indices for c in merged.chunks[1:]]
        self._pending, self._pending_values = [], 0

    def finish(self) -> tuple[pa.Array, pa.Array]:
        """Returns the codes [rows] and the raw ids, and gives up the codes."""
        self._merge()
        codes = pa.concat_arrays(self._codes)
        self._codes = []
        return codes, self._values


class ArrowRows:
    """The rows as columns in memory, with ids as indices into the raw ids; see `EngineRows`.

    Attributes:
        engine: name and version.
    """

    def __init__(self) -> None:
        self._ids = {USER: _IdColumn(), ITEM: _IdColumn()}
        self._times: list[npt.NDArray[np.int64]] = []
        self._columns: dict[str, pa.Array] = {}
        self._raw: dict[str, pa.Array] = {}
        self._counts: dict[str, npt.NDArray[np.int64]] = {}  # of the rows that are left
        self.engine = {"name": "pyarrow", "version": pa.__version__}

    def add(self, rows: Interactions) -> None:
        """Appends rows."""
        self._ids[USER].add(rows.users)
        self._ids[ITEM].add(rows.items)
        if rows.timestamps is not None:
            self._times.append(rows.timestamps)

    def finish(self) -> None:
        """Completes the columns once all rows are added."""
        for column in FIRST_IDS:
            self._columns[column], self._raw[column] = self._ids.pop(column).finish()
        if self._times:
            self._columns[TIMESTAMP] = column_of(np.concatenate(self._times))
            self._times.clear()

    @property
    def num_rows(self) -> int:
        """Rows that are left."""
        return len(self._columns[USER])

    def drop_rare(self, minimums: Mapping[str, int]) -> None:
        """Counts each column, and filters all columns if any id is rare."""
        for column, minimum in minimums.items():
            counts = self._count(column)
            enough = counts >= minimum
            if not enough[counts > 0].all():
                kept = column_of(enough).take(self._columns[column])
                for name, values in self._columns.items():
                    self._columns[name] = values.filter(kept)
                self._counts.clear()

    def _count(self, column: str) -> npt.NDArray[np.int64]:
        """Counts the rows of each raw id."""
        if column not in self._counts:
            codes, size = numbers_of(self._columns[column]), len(self._raw[column])
            counts = np.zeros(size, np.int64)
            for start in range(0, len(codes), _SLICE_ROWS):  # a copy of all would leave the caches
                counts += np.bincount(codes[start : start + _SLICE_ROWS], minlength=size)
            self._counts[column] = counts
        return self._counts[column]

    def number(self) -> dict[str, RawIds]:
        """Looks up the dense ids."""
        return {column: self._number(column) for column in FIRST_IDS}

    def _number(self, column: str) -> RawIds:
        counts = self._count(column)
        ids, present = RawIds(self._raw.pop(column), counts), np.flatnonzero(counts)
        order = present[order_ids(column, ids.take(present))]
        dense = np.zeros(len(ids), np.int32)
        dense[order] = np.arange(len(order), dtype=np.int32) + FIRST_IDS[column]
        self._columns[column] = column_of(dense).take(self._columns[column])
        return ids.take(order)

    def ordered(self, *, with_times: bool) -> Ordered:
        """Orders the rows and gives them up."""
        columns = {name: numbers_of(values) for name, values in self._columns.items()}
        self._columns.clear()
        pa.default_memory_pool().release_unused()  # NumPy needs it from here on
        return order_rows(columns, with_times=with_times)
