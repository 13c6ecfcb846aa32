# SPDX-License-Identifier: Apache-2.0
"""Rows of a split, as datasets give them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec


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
