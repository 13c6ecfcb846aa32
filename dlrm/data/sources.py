# SPDX-License-Identifier: Apache-2.0
"""Rows of a split, as datasets give them."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.parquet import ParquetReader


class RowSource(Protocol):
    """Random access to the rows of a split."""

    @property
    def spec(self) -> FeatureSpec:
        """Features of the rows."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of the split."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """Files of the split."""
        ...

    def read(self, start: int, stop: int) -> ClickColumns:
        """Reads rows [start, stop); several threads may call it."""
        ...


@runtime_checkable
class StreamedRows(Protocol):
    """Sequential access, for rows that are cheapest to read in order."""

    def stream(self, start: int) -> Iterator[ClickColumns]:
        """Yields the rows from number `start` on, in blocks of any length."""
        ...


@runtime_checkable
class RowsReadInto(Protocol):
    """Random access to rows that are read into given memory."""

    def read_into(self, start: int, columns: ClickColumns) -> None:
        """Reads rows from number `start` on, as many as `columns` have."""
        ...


class ParquetRows:
    """Rows of a parquet split, by number or as row groups.

    Access by number caches the last decoded row groups.

    Args:
        reader: reader of the split.
        check_ids: refuse ids outside their tables.
    """

    _KEPT_GROUPS = 3

    def __init__(self, reader: ParquetReader, check_ids: bool = True) -> None:
        self._reader = reader
        self._check_ids = check_ids
        self._groups: dict[int, ClickColumns] = {}
        self._lock = threading.Lock()
        self.spec = reader.spec
        self.num_rows = reader.num_rows
        self.files = reader.paths

    def stream(self, start: int) -> Iterator[ClickColumns]:
        """Yields the rows from number `start` on, by row group."""
        return self._reader.groups(start, check_ids=self._check_ids)

    def read(self, start: int, stop: int) -> ClickColumns:
        """Reads rows [start, stop)."""
        slices = []
        first_row = 0
        for index, rows in enumerate(self._reader.group_rows):
            if first_row < stop and first_row + rows > start:
                group = self._group(index)
                slices.append(group[max(start - first_row, 0) : min(stop - first_row, rows)])
            first_row += rows
        if not slices:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        return slices[0] if len(slices) == 1 else ClickColumns.concatenate(slices)

    def _group(self, index: int) -> ClickColumns:
        with self._lock:
            if index not in self._groups:
                self._groups[index] = self._reader.read_group(index, check_ids=self._check_ids)
                while len(self._groups) > self._KEPT_GROUPS:
                    self._groups.pop(next(iter(self._groups)))
            return self._groups[index]
