# SPDX-License-Identifier: Apache-2.0
"""The default engine of ratings, in memory with PyArrow and NumPy.

Peak memory is about 45 bytes a row that reaches `min_rating`, each raw id twice, and 200 MiB.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from preproc.files.progress import ProgressReporter
from preproc.ratings.format import ITEM, USER
from preproc.ratings.histories import Filtered, Read, collect, ties, time_keys
from preproc.ratings.ids import IdColumn, dense_ids, kcore
from preproc.ratings.job import RatingsJob
from preproc.ratings.parse import Interactions
from preproc.ratings.read import nothing_left


def run(
    job: RatingsJob, read: Read, _folder: Path, reporter: ProgressReporter
) -> tuple[Filtered, dict[str, Any]]:
    """Makes the histories of a ratings file in memory; see `Engine`."""
    user_column, item_column = IdColumn(), IdColumn()
    times: list[npt.NDArray[np.int64]] = []

    def add(rows: Interactions) -> None:
        user_column.add(rows.users)
        item_column.add(rows.items)
        if rows.timestamps is not None:
            times.append(rows.timestamps)

    rows_read = read(add)
    users, raw_users = user_column.finish()
    items, raw_items = item_column.finish()
    timestamps = np.concatenate(times) if times else None
    times.clear()
    pa.default_memory_pool().release_unused()  # NumPy needs it from here on
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
        raise nothing_left(job, rows_read.num_rows)
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
    filtered = collect(
        ordered_items, ordered_times, user_map, item_map, is_tied, rows_read, passes, reporter
    )
    return filtered, {"name": "pyarrow", "version": pa.__version__}
