# SPDX-License-Identifier: Apache-2.0
"""The default engine of ratings, in memory with PyArrow and NumPy.

Peak memory is about 45 bytes a row that reaches `min_rating`, each raw id twice, and 200 MiB.
"""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from preproc.files.progress import ProgressReporter
from preproc.files.quarantine import RejectedRow
from preproc.ratings.format import ITEM, USER
from preproc.ratings.histories import (
    EngineResult,
    FilterCounts,
    Read,
    collect,
    nothing_left,
    ties,
    time_keys,
)
from preproc.ratings.ids import IdColumn, dense_ids, kcore
from preproc.ratings.job import RatingsJob
from preproc.ratings.parse import Interactions


def run(job: RatingsJob, read: Read, _folder: Path, reporter: ProgressReporter) -> EngineResult:
    """Makes the histories of a ratings file in memory; see `Engine`."""
    ratings = Ratings()
    read(ratings)

    users, raw_users = ratings.users.finish()
    items, raw_items = ratings.items.finish()
    timestamps = ratings.take_timestamps()
    pa.default_memory_pool().release_unused()  # NumPy needs it from here on
    before = len(users)
    kept, passes = kcore(
        users,
        items,
        min_user_count=job.min_counts[USER],
        min_item_count=job.min_counts[ITEM],
        kind=job.kcore,
    )
    if kept is not None:
        users, items = users[kept], items[kept]
        timestamps = None if timestamps is None else timestamps[kept]
        del kept
    if not len(users):
        raise nothing_left(job, ratings.num_rows)
    # Columns are deleted after their last use, because they decide the peak of memory.
    user_ids, user_map = dense_ids(USER, users, raw_users)
    del users
    keys = time_keys(user_ids, timestamps)
    has_times = timestamps is not None
    if job.quantile is None:
        timestamps = None
    del user_ids
    order = np.argsort(keys, kind="stable")
    is_tied = ties(keys, order) if has_times else None
    del keys
    item_ids, item_map = dense_ids(ITEM, items, raw_items)
    del items
    ordered_items = item_ids[order]
    ordered_times = None if timestamps is None else timestamps[order]
    del order, item_ids
    counts = FilterCounts(ratings.below_min_rating, before - len(ordered_items), passes)
    filtered = collect(ordered_items, ordered_times, user_map, item_map, is_tied, counts, reporter)
    return ratings, filtered, {"name": "pyarrow", "version": pa.__version__}


@dataclasses.dataclass(slots=True)
class Ratings:
    """The rows of a file that reach `min_rating`, in file order.

    Attributes:
        users: raw ids of the rows.
        items: raw ids of the rows.
        num_rows: valid rows, those below `min_rating` included.
        below_min_rating: valid rows that were dropped.
        rejected: rows that break the grammar.
    """

    users: IdColumn = dataclasses.field(default_factory=IdColumn)
    items: IdColumn = dataclasses.field(default_factory=IdColumn)
    num_rows: int = 0
    below_min_rating: int = 0
    rejected: list[RejectedRow] = dataclasses.field(default_factory=list)
    _timestamps: list[npt.NDArray[np.int64]] = dataclasses.field(default_factory=list)

    def add(self, rows: Interactions, min_rating: float) -> None:
        """Appends rows, without those below `min_rating`."""
        self.num_rows += len(rows)
        if rows.ratings is not None and min_rating > 0:
            enough = rows.ratings >= min_rating
            self.below_min_rating += len(rows) - int(enough.sum())
            rows = rows.filter(enough)
        self.users.add(rows.users)
        self.items.add(rows.items)
        if rows.timestamps is not None:
            self._timestamps.append(rows.timestamps)

    def take_timestamps(self) -> npt.NDArray[np.int64] | None:
        """Returns and frees the timestamps of all rows, if there are any."""
        if not self._timestamps:
            return None
        timestamps = np.concatenate(self._timestamps)
        self._timestamps = []
        return timestamps
