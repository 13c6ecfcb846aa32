# SPDX-License-Identifier: Apache-2.0
"""Ways to read rows that some formats support in addition to `RowReader`."""

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
    """Random access that reads rows into given memory."""

    def read_into(self, start: int, columns: ClickColumns) -> None:
        """Reads as many rows as `columns` have, from number `start` on."""
        ...
