# SPDX-License-Identifier: Apache-2.0
"""Rows of a ratings file in parquet parts, for the engines that work on files."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.ratings.format import ITEM, ROW, TIMESTAMP, USER
from preproc.ratings.parse import Interactions


class PartRows:
    """Writes rows to parts, which engines process; see `EngineRows`.

    Attributes:
        folder: folder of the parts.
        paths: the parts; none is empty.
        num_rows: rows so far.
        has_timestamps: whether the rows have timestamps.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.paths: list[Path] = []
        self.num_rows = 0
        self.has_timestamps = False

    def add(self, rows: Interactions) -> None:
        """Writes rows to a part."""
        columns: dict[str, Any] = {
            USER: rows.users.cast(pa.string()),
            ITEM: rows.items.cast(pa.string()),
            ROW: np.arange(self.num_rows, self.num_rows + len(rows)),
        }
        if rows.timestamps is not None:
            columns[TIMESTAMP] = rows.timestamps
            self.has_timestamps = True
        path = self.folder / f"{len(self.paths):05d}.parquet"
        pq.write_table(pa.table(columns), path)
        self.paths.append(path)
        self.num_rows += len(rows)
