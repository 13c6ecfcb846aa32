# SPDX-License-Identifier: Apache-2.0
"""Ways to read rows that some formats have besides those of `RowReader`."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from recsys.data.click_columns import ClickColumns


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
