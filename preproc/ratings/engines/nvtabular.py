# SPDX-License-Identifier: Apache-2.0
"""Ratings through NVTabular: filters, counts and ids are its work, the definition is that of all.

Rows are judged by the grammar and go to parquet parts; then NVTabular drops low ratings (`Filter`),
numbers the raw ids (`Categorify`), counts and drops for the k-core, and gives the rows their dense
ids. Numbering and order follow the one rule (`ratings_ids`), since NVTabular breaks ties at random.
Memory holds the distinct ids, and about 28 bytes for each row that the filters leave.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from preproc.files.progress import ProgressReporter
from preproc.files.row_parts import ITEM, RATING, TIMESTAMP, USER, RawParts
from preproc.nvtabular.process import FIRST_ID, NvtabularProcess
from preproc.nvtabular.steps import RatingsSteps
from preproc.ratings.ids import order_items
from preproc.ratings.job import RatingsJob
from preproc.ratings.order import Filtered, FilterFigures, collect, nothing_left, time_keys
from preproc.ratings.read import RatingsSink
from recsys.data.sequences import RawIds
from recsys.data.sequences_fingerprint import order_raw_ids
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
    """Drops what `kcore.kcore` drops; returns the number of passes that dropped something."""
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
