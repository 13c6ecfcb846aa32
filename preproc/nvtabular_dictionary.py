# SPDX-License-Identifier: Apache-2.0
"""Categories counted by NVTabular, and the dictionaries that follow from the counts.

NVTabular orders categories of equal count by an unstable sort and numbers them from 3, so its own
ids are not used: its counts are merged here and ordered by the one rule (count descending, then
value ascending), and the encoding gets the vocabularies in that order.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from preproc.criteo_engine import EngineJob
from preproc.criteo_schema import order_dictionary
from preproc.native_merge import REMEDIES
from preproc.native_units import memory_error
from preproc.nvtabular_process import LEAST_WORKER_BYTES, PARENT_BYTES, NvtabularProcess
from preproc.nvtabular_rows import (
    CATEGORICAL,
    MISSING_CATEGORY,
    RowPart,
    ValidRows,
    write_part,
)
from preproc.workspace import read_record, settings_key, write_record

MAX_GROUP_PARTS = 16
"""Parts of a request, at most: 512 MiB of text."""

_PART_BYTES = 160 * 2**20
"""Memory of NVTabular while it counts a part whose categories are all distinct."""

_MERGE_ENTRY_BYTES = 64
"""Of a (value, count) of one group while a column is merged: both, sorted, and the order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dictionaries:
    """The categories of each column in id order, and what they depend on."""

    key: str
    categories: list[npt.NDArray[np.uint32]]


@dataclasses.dataclass(slots=True)
class GroupProgress:
    """How far a stage of groups is, in bytes of their parts and in rows."""

    bytes: int = 0
    rows: int = 0
    group_bytes: int = 0
    share: float = 0.0

    def counters(self) -> tuple[int, int]:
        """Returns (bytes, rows) for the reporter."""
        return self.bytes + int(self.share * self.group_bytes), self.rows

    def run(self, process: NvtabularProcess, request: dict[str, Any], group: list[RowPart]) -> None:
        """Sends a request about a group, following its progress."""
        self.group_bytes = sum(p.path.stat().st_size for p in group)

        def on_progress(share: float) -> None:
            self.share = share

        process.call(request, on_progress)
        self.skip(group)

    def skip(self, group: list[RowPart]) -> None:
        """Takes a group as done."""
        self.share = 0.0
        self.bytes += sum(p.path.stat().st_size for p in group)
        self.rows += sum(p.rows for p in group)


def group_parts(memory_limit: int) -> int:
    """Returns the parts of a request, whose distinct categories NVTabular holds in memory."""
    return max(1, min((memory_limit - PARENT_BYTES) // _PART_BYTES, MAX_GROUP_PARTS))


def groups_of(parts: list[RowPart], size: int) -> Iterator[list[RowPart]]:
    """Yields the parts of each request, in order."""
    for first in range(0, len(parts), size):
        yield parts[first : first + size]


def build_dictionaries(
    engine_job: EngineJob, process: NvtabularProcess, rows: ValidRows, counted: int
) -> Dictionaries:
    """Counts the categories of the first `counted` rows, groups that were counted before excepted.

    Raises:
        PreprocError: NVTabular failed, or the counts of a column do not fit the memory limit.
    """
    limit = engine_job.job.semantics.frequency_limit
    size = group_parts(engine_job.job.memory_limit)
    key = settings_key({"rows": rows.key, "counted": counted, "group_parts": size})
    folder = engine_job.workspace.unit_dir("nvtabular_count", key)
    parts = _first_parts(rows, counted, folder)
    progress = GroupProgress()
    total = sum(p.path.stat().st_size for p in parts)
    group_folders = []
    with engine_job.reporter.stage("count", total, progress.counters):
        for index, group in enumerate(groups_of(parts, size)):
            record, group_folder = folder / f"{index:05d}.json", folder / f"{index:05d}"
            group_folders.append(group_folder)
            if read_record(record) is not None:
                progress.skip(group)
                continue
            request = {
                "do": "count",
                "parts": [str(p.path) for p in group],
                "columns": list(CATEGORICAL),
                "folder": str(group_folder),
            }
            progress.run(process, request, group)
            write_record(record, {"rows": sum(p.rows for p in group)})
    categories = [_merge(engine_job, group_folders, name, limit) for name in CATEGORICAL]
    depends = {"rows": rows.key, "counted": counted, "frequency_limit": limit}
    return Dictionaries(settings_key(depends), categories)


def _first_parts(rows: ValidRows, counted: int, folder: Path) -> list[RowPart]:
    """Returns parts that hold the first rows and no other; the last one may have to be cut."""
    parts, held = [], 0
    for part in rows.parts:
        if held + part.rows <= counted:
            parts.append(part)
        elif held < counted:
            cut = RowPart(folder / "cut.parquet", counted - held)
            if not cut.path.exists():
                write_part(cut.path, pq.read_table(part.path).slice(0, cut.rows))
            parts.append(cut)
        held += part.rows
    return parts


def _merge(
    engine_job: EngineJob, folders: list[Path], name: str, limit: int
) -> npt.NDArray[np.uint32]:
    """Returns the dictionary of a column from the counts of all groups."""
    paths = [folder / "categories" / f"unique.{name}.parquet" for folder in folders]
    if not paths:
        return np.empty(0, np.uint32)
    memory_limit = engine_job.job.memory_limit
    needed = _MERGE_ENTRY_BYTES * sum(pq.read_metadata(p).num_rows for p in paths)
    if needed > memory_limit - LEAST_WORKER_BYTES:
        remedies = REMEDIES + ", or use --engine native, which merges piece by piece"
        raise memory_error(memory_limit, needed + LEAST_WORKER_BYTES, remedies)
    size = f"{name}_size"
    tables = [pq.read_table(p, columns=[name, size]) for p in paths]
    values = np.concatenate([t[name].to_numpy() for t in tables]).astype(np.int64)
    counts = np.concatenate([t[size].to_numpy() for t in tables]).astype(np.uint64)
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    values, counts = values[starts], np.add.reduceat(counts, starts)
    present = values != MISSING_CATEGORY
    return order_dictionary(values[present].astype(np.uint32), counts[present], limit)
