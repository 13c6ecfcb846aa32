# SPDX-License-Identifier: Apache-2.0
"""Ratings as parquet parts, and the requests to NVTabular that turn them into other parts."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.criteo.engines.nvtabular.counts import (
    MAX_GROUP_PARTS,
    GroupProgress,
    count_columns,
    groups_of,
    merge_counts,
)
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.row_parts import RATING, ROW, RowPart, total_bytes
from preproc.nvtabular.process import NvtabularProcess, write_vocabulary


class RatingsSteps:
    """The rows as they are after the steps so far.

    Attributes:
        num_rows: of all parts.
    """

    def __init__(
        self,
        process: NvtabularProcess,
        folder: Path,
        reporter: ProgressReporter,
        parts: Sequence[RowPart],
    ) -> None:
        self._process = process
        self._folder = folder
        self._reporter = reporter
        self._parts = list(parts)
        self._made = 0
        self.num_rows = sum(p.rows for p in parts)

    def _new_folder(self) -> Path:
        self._made += 1
        folder = self._folder / f"step_{self._made:05d}"
        folder.mkdir(parents=True)
        return folder

    def count(self, *columns: str) -> dict[str, tuple[pa.Array, npt.NDArray[np.int64]]]:
        """Returns the distinct values of columns, and how often each occurs."""
        folder = self._new_folder()
        folders = count_columns(
            self._process, self._parts, columns, folder, MAX_GROUP_PARTS, self._reporter
        )
        counts = {column: merge_counts(folders, column) for column in columns}
        shutil.rmtree(folder)
        return counts

    def filter(self, column: str, condition: dict[str, Any]) -> None:
        """Drops rows by a column; ratings are of no use later."""
        folder = self._new_folder()
        kept = [c for c in pq.read_schema(self._parts[0].path).names if c != RATING]
        if "among" in condition:
            condition = {"among": write_vocabulary(folder, column, condition["among"])}
        request = {"do": "filter", "kept": kept, "column": column}
        self._replace("filter", request | condition, folder)

    def encode(self, vocabularies: dict[str, pa.Array]) -> None:
        """Replaces values by their places in the vocabularies, counted from `FIRST_ID`."""
        folder = self._new_folder()
        names = pq.read_schema(self._parts[0].path).names
        request = {
            "do": "prepare",
            "parts": [str(self._parts[0].path)],
            "folder": str(folder / "vocabularies"),
            "kept": [n for n in names if n not in vocabularies and n != RATING],
            "vocabularies": {
                column: write_vocabulary(folder, column, values)
                for column, values in vocabularies.items()
            },
        }
        self._process.call(request, lambda _: None)
        self._replace("encode", {"do": "encode"}, folder)

    def _replace(self, stage: str, request: dict[str, Any], folder: Path) -> None:
        """Sends a request about every group; its results become the parts."""
        made: list[RowPart] = []
        progress = GroupProgress()
        with self._reporter.stage(stage, total_bytes(self._parts), progress.counters):
            for index, group in enumerate(groups_of(self._parts, MAX_GROUP_PARTS)):
                group_folder = folder / f"{index:05d}"
                progress.run(self._process, request | {"folder": str(group_folder)}, group)
                paths = [group_folder / part.path.name for part in group]
                made += [RowPart(p, pq.read_metadata(p).num_rows) for p in paths]
        for part in self._parts:
            part.path.unlink()
        self._parts = [part for part in made if part.rows]  # Categorify fails on an empty one
        self.num_rows = sum(p.rows for p in self._parts)

    def load(self, columns: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Returns columns of all rows.

        Raises:
            PreprocError: the rows are not in file order.
        """
        found: dict[str, list[npt.NDArray[Any]]] = {column: [] for column in columns}
        last = -1
        for part in self._parts:
            table = pq.read_table(part.path, columns=[*columns, ROW])
            rows = table[ROW].to_numpy()
            missing = any(c.null_count for c in table.columns)
            if missing or rows[0] <= last or (np.diff(rows) <= 0).any():
                raise PreprocError(
                    f"{part.path}: NVTabular did not give back the rows in their order and without "
                    "missing values. Please report this error of the engine; --engine pyarrow "
                    "makes the same dataset"
                )
            last = int(rows[-1])
            for column in columns:
                found[column].append(table[column].to_numpy())
        return {column: np.concatenate(pieces) for column, pieces in found.items()}
