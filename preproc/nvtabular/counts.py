# SPDX-License-Identifier: Apache-2.0
"""Counts the values of columns with NVTabular, writes vocabularies for it, and reads its parts.

Rows are in parquet parts. A request covers a group of parts, because NVTabular holds the distinct
values of a request in memory.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.budget import memory_error
from preproc.files.errors import PreprocError
from preproc.files.progress import Progress, ProgressReporter
from preproc.files.workspace import read_record, write_record
from preproc.nvtabular.process import (
    LEAST_WORKER_BYTES,
    PARENT_BYTES,
    SAME_DATASET,
    NvtabularProcess,
)
from recsys.files.durable import sync_tree

MAX_GROUP_PARTS = 16

_PART_BYTES = 160 * 2**20
"""Memory that NVTabular needs to count a part of Criteo rows with only distinct categories."""

_MERGE_ENTRY_BYTES = 64
"""Memory of a (value, count) pair of a group in `merge_counts`, measured with 64-bit values."""


@dataclasses.dataclass(frozen=True, slots=True)
class RowFile:
    """A parquet file and the number of its rows."""

    path: Path
    rows: int


def total_bytes(parts: Sequence[RowFile]) -> int:
    """Returns the bytes of all parts on disk."""
    return sum(p.path.stat().st_size for p in parts)


class GroupProgress(Progress):
    """Progress of a stage in groups of parts, by file size."""

    def run(
        self, process: NvtabularProcess, request: dict[str, Any], group: Sequence[RowFile]
    ) -> None:
        """Sends a request about a group and follows its progress."""
        before, group_bytes = self.bytes, total_bytes(group)

        def on_progress(fraction: float) -> None:
            self.bytes = before + int(fraction * group_bytes)

        process.call(request | {"parts": [str(p.path) for p in group]}, on_progress)
        self.bytes = before
        self.skip(group)

    def skip(self, group: Sequence[RowFile]) -> None:
        """Counts a group as finished."""
        self.bytes += total_bytes(group)
        self.rows += sum(p.rows for p in group)


def group_parts(memory_limit: int) -> int:
    """Returns how many parts per request fit the memory limit (bytes)."""
    return max(1, min((memory_limit - PARENT_BYTES) // _PART_BYTES, MAX_GROUP_PARTS))


def groups_of(parts: Sequence[RowFile], size: int) -> Iterator[list[RowFile]]:
    """Yields groups of `size` consecutive parts; the last may be smaller."""
    for first in range(0, len(parts), size):
        yield list(parts[first : first + size])


def read_in_order(files: Iterable[RowFile], column: str, first: int = 0) -> Iterator[pa.Table]:
    """Yields the rows of parts that NVTabular wrote; `column` numbers them, from `first` on.

    Raises:
        PreprocError: rows are missing or out of order.
    """
    for file in files:
        table = pq.read_table(file.path)
        rows = table[column].to_numpy()
        missing = len(rows) != file.rows or any(c.null_count for c in table.columns)
        if missing or (np.diff(rows, prepend=first - 1) <= 0).any():
            raise PreprocError(
                f"{file.path}: NVTabular did not return the {file.rows} rows from {first} on in "
                "order and without missing values. Please report this engine error; "
                f"{SAME_DATASET}",
                setting="engine",
                path=file.path,
            )
        first = int(rows[-1]) + 1
        yield table


def write_vocabulary(folder: Path, column: str, values: Any) -> str:
    """Writes a column's values in id order; returns the file's name."""
    path = folder / f"vocabulary.{column}.parquet"
    pq.write_table(pa.table({column: values}), path)
    return str(path)


def count_columns(
    process: NvtabularProcess,
    parts: Sequence[RowFile],
    columns: Sequence[str],
    folder: Path,
    group_size: int,
    reporter: ProgressReporter,
) -> list[Path]:
    """Counts the values of columns without missing values, by group.

    `folder` keeps the counts of finished groups for a resumed run, which must have the same parts,
    columns and group size.

    Returns:
        The folder of each group, for `merge_counts`.
    """
    progress = GroupProgress()
    folders = []
    with reporter.stage("count", total_bytes(parts), progress.counters):
        for index, group in enumerate(groups_of(parts, group_size)):
            record, group_folder = folder / f"{index:05d}.json", folder / f"{index:05d}"
            folders.append(group_folder)
            if read_record(record) is not None:
                progress.skip(group)
                continue
            request = {"do": "count", "columns": list(columns), "folder": str(group_folder)}
            progress.run(process, request, group)
            sync_tree(group_folder)
            write_record(record, {"rows": sum(p.rows for p in group)})
    return folders


def merge_counts(
    folders: Sequence[Path], column: str, memory_limit: int | None = None, remedy: str = ""
) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Returns the distinct values of a column with their counts, unordered.

    Args:
        folders: at least one, from `count_columns`.
        column: name of a counted column.
        memory_limit: bytes of anonymous memory of all processes; None for no limit.
        remedy: alternatives to a higher limit, for the error message.

    Raises:
        PreprocError: the counts do not fit the memory limit.
    """
    paths = [folder / "categories" / f"unique.{column}.parquet" for folder in folders]
    needed = _MERGE_ENTRY_BYTES * sum(pq.read_metadata(p).num_rows for p in paths)
    if memory_limit is not None and needed > memory_limit - LEAST_WORKER_BYTES:
        raise memory_error(memory_limit, needed + LEAST_WORKER_BYTES, remedy)
    size = f"{column}_size"
    table = pa.concat_tables([pq.read_table(p, columns=[column, size]) for p in paths])
    if len(paths) > 1:
        table = table.group_by(column, use_threads=False).aggregate([(size, "sum")])
        size = f"{size}_sum"
    counts = table[size].to_numpy().astype(np.int64)
    return table[column].combine_chunks(), counts
