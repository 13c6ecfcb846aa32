# SPDX-License-Identifier: Apache-2.0
"""Valid rows on the way to an engine, as parquet files of bounded size."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.quarantine import BadRow
from preproc.ratings.parse import Interactions

USER, ITEM, TIMESTAMP, RATING, ROW = "user", "item", "timestamp", "rating", "row"


@dataclasses.dataclass(frozen=True, slots=True)
class RowPart:
    """A parquet file with some rows."""

    path: Path
    rows: int


def total_bytes(parts: Sequence[RowPart]) -> int:
    """Returns the bytes of parts on disk."""
    return sum(p.path.stat().st_size for p in parts)


@dataclasses.dataclass(slots=True)
class RawParts:
    """Takes the rows of a ratings file, and keeps them as parquet parts.

    Attributes:
        folder: for the parts; exists.
        parts: those written.
        num_rows: good rows.
        bad: rows that were set aside.
    """

    folder: Path
    parts: list[RowPart] = dataclasses.field(default_factory=list)
    num_rows: int = 0
    bad: list[BadRow] = dataclasses.field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Columns of the parts; there is one with a good row."""
        names: list[str] = pq.read_schema(self.parts[0].path).names
        return names

    def add(self, rows: Interactions, min_rating: float) -> None:
        """Writes the next rows; the engine drops those below `min_rating` later."""
        if not len(rows):
            return
        columns: dict[str, Any] = {
            USER: rows.users.cast(pa.string()),
            ITEM: rows.items.cast(pa.string()),
            ROW: np.arange(self.num_rows, self.num_rows + len(rows)),
        }
        if rows.ratings is not None and min_rating > 0:
            columns[RATING] = rows.ratings
        if rows.timestamps is not None:
            columns[TIMESTAMP] = rows.timestamps
        part = RowPart(self.folder / f"{len(self.parts):05d}.parquet", len(rows))
        pq.write_table(pa.table(columns), part.path)
        self.parts.append(part)
        self.num_rows += len(rows)
