# SPDX-License-Identifier: Apache-2.0
"""Ratings through NVTabular: filters, counts and ids are its work, the definition is that of all.

Rows are judged by the grammar and go to parquet parts; then NVTabular drops low ratings (`Filter`),
numbers the raw ids (`Categorify`), counts and drops for the k-core, and gives the rows their dense
ids. Numbering and order follow the one rule (`ratings.ids`), since NVTabular breaks ties at random.
Memory holds the distinct ids, and about 28 bytes for each row that the filters leave.
"""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from preproc.files.row_files import RowFile, total_bytes
from preproc.nvtabular.counts import (
    MAX_GROUP_PARTS,
    GroupProgress,
    count_columns,
    groups_of,
    merge_counts,
)
from preproc.nvtabular.process import FIRST_ID, NvtabularProcess, write_vocabulary
from preproc.ratings.ids import order_items
from preproc.ratings.job import RatingsJob
from preproc.ratings.order import Filtered, FilterFigures, collect, nothing_left, time_keys
from preproc.ratings.read import ITEM, RATING, ROW, TIMESTAMP, USER, RatingsSink, RawParts
from recsys.data.sequences import RawIds, order_raw_ids
from recsys.settings import default_threads


def run(
    job: RatingsJob,
    read: Callable[[RatingsSink], None],
    folder: Path,
    reporter: ProgressReporter,
) -> tuple[RatingsSink, Filtered, dict[str, Any]]:
    """Makes the histories of a ratings file with NVTabular.

    Args:
        job: with both minimum counts.
        read: reads the file into a sink.
        folder: for what comes between; exists, and is removed by the caller.
        reporter: shows the stages.

    Returns:
        What was read, what the filters left of it, and the engine for the manifest.

    Raises:
        PreprocError: NVTabular is not there or failed, or no row is left.
    """
    process = NvtabularProcess(
        job.nvtabular_python, job.nvtabular_device, None, default_threads(), folder / "log"
    )
    with process:
        (folder / "raw").mkdir()
        raw = RawParts(folder / "raw")
        read(raw)
        dense = _make_dense(job, process, raw, folder, reporter)
    if dense is None:
        raise nothing_left(job, raw.num_rows)
    order = np.argsort(time_keys(dense.user_ids, dense.timestamps), kind="stable")
    figures = FilterFigures(dense.below_min_rating, dense.dropped_by_kcore, dense.passes)
    filtered = collect(dense.item_ids[order], dense.users, dense.items, figures, reporter)
    engine = {"name": "nvtabular", "version": process.version, "device": process.device}
    return raw, filtered, engine


@dataclasses.dataclass(frozen=True, slots=True)
class _DenseRows:
    """The rows that the filters left, in file order, and the figures of the filters.

    Attributes:
        user_ids: [n] from 0.
        item_ids: [n] from 1.
        timestamps: [n], None where the format has none.
        users: what the user ids stand for.
        items: what the item ids stand for.
        below_min_rating: rows dropped by their rating.
        dropped_by_kcore: rows dropped by the k-core.
        passes: of the k-core that dropped something.
    """

    user_ids: npt.NDArray[np.int32]
    item_ids: npt.NDArray[np.int32]
    timestamps: npt.NDArray[np.int64] | None
    users: RawIds
    items: RawIds
    below_min_rating: int
    dropped_by_kcore: int
    passes: int


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
        parts: Sequence[RowFile],
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
        made: list[RowFile] = []
        progress = GroupProgress()
        with self._reporter.stage(stage, total_bytes(self._parts), progress.counters):
            for index, group in enumerate(groups_of(self._parts, MAX_GROUP_PARTS)):
                group_folder = folder / f"{index:05d}"
                progress.run(self._process, request | {"folder": str(group_folder)}, group)
                paths = [group_folder / part.path.name for part in group]
                made += [RowFile(p, pq.read_metadata(p).num_rows) for p in paths]
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
                    "missing values. Please report this error of the engine; `engine` pyarrow "
                    "makes the same dataset"
                )
            last = int(rows[-1])
            for column in columns:
                found[column].append(table[column].to_numpy())
        return {column: np.concatenate(pieces) for column, pieces in found.items()}


def _make_dense(
    job: RatingsJob,
    process: NvtabularProcess,
    raw: RawParts,
    folder: Path,
    reporter: ProgressReporter,
) -> _DenseRows | None:
    """Filters the rows and gives them dense ids; None if no row is left.

    Args:
        job: with both minimum counts.
        process: does the work.
        raw: the rows; their files are removed.
        folder: for what comes between.
        reporter: shows the stages.
    """
    steps = RatingsSteps(process, folder, reporter, raw.parts)
    has_timestamps = TIMESTAMP in raw.columns
    if job.min_rating > 0:
        steps.filter(RATING, {"minimum": job.min_rating})
    rated = steps.num_rows
    if not rated:
        return None
    # Numbers for the raw ids first: comparing them is much cheaper than comparing strings.
    counts = steps.count(USER, ITEM)
    raw_ids = {column: values for column, (values, _) in counts.items()}
    steps.encode(raw_ids)
    passes = _kcore(job, steps)
    if not steps.num_rows:
        return None
    orders: dict[str, Callable[[pa.Array, npt.NDArray[np.int64]], npt.NDArray[np.int64]]] = {
        USER: lambda found, _: order_raw_ids(found),
        ITEM: order_items,
    }
    maps, vocabularies = {}, {}
    for column, (codes, occurrences) in steps.count(USER, ITEM).items():
        found = raw_ids[column].take(pa.array(codes.to_numpy() - FIRST_ID))
        order = orders[column](found, occurrences)
        maps[column] = RawIds(found.take(pa.array(order)), occurrences[order])
        vocabularies[column] = codes.take(pa.array(order))
    steps.encode(vocabularies)
    columns = steps.load([USER, ITEM, *([TIMESTAMP] if has_timestamps else [])])
    return _DenseRows(
        user_ids=columns[USER].astype(np.int32) - FIRST_ID,
        item_ids=columns[ITEM].astype(np.int32) - (FIRST_ID - 1),
        timestamps=columns.get(TIMESTAMP),
        users=maps[USER],
        items=maps[ITEM],
        below_min_rating=raw.num_rows - rated,
        dropped_by_kcore=rated - steps.num_rows,
        passes=passes,
    )


def _kcore(job: RatingsJob, steps: RatingsSteps) -> int:
    """Drops what `ids.kcore` drops; returns the number of passes that dropped something."""
    assert job.min_user_count is not None
    assert job.min_item_count is not None
    passes = 0
    while True:
        before = steps.num_rows
        for column, minimum in ((ITEM, job.min_item_count), (USER, job.min_user_count)):
            if minimum <= 1 or not steps.num_rows:
                continue
            values, counts = steps.count(column)[column]
            enough = counts >= minimum
            if not enough.all():
                steps.filter(column, {"among": values.filter(pa.array(enough))})
        if steps.num_rows == before:
            return passes
        passes += 1
        if job.kcore == "once":
            return passes
