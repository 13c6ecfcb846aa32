# SPDX-License-Identifier: Apache-2.0
"""Turns ratings into histories: filters, dense ids, order."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from preproc.ratings.ids import dense_items, dense_users, kcore
from preproc.ratings.job import RatingsJob
from preproc.ratings.read import Ratings
from recsys.data.sequences import RawIds, Sequences, split_fingerprint


@dataclasses.dataclass(frozen=True, slots=True)
class Filtered:
    """Interactions that pass the filters.

    Attributes:
        sequences: histories in dense ids.
        users: what the user ids stand for.
        items: what the item ids stand for.
        statistics: figures for the manifest.
    """

    sequences: Sequences
    users: RawIds
    items: RawIds
    statistics: dict[str, Any]


def order_sequences(job: RatingsJob, ratings: Ratings, reporter: ProgressReporter) -> Filtered:
    """Filters and orders what was read; `ratings` is emptied on the way.

    Raises:
        PreprocError: nothing is left.
    """
    assert job.min_user_count is not None
    assert job.min_item_count is not None
    users, raw_users = ratings.users.finish()
    items, raw_items = ratings.items.finish()
    timestamps = ratings.take_timestamps()
    pa.default_memory_pool().release_unused()  # what follows is NumPy's
    before = len(users)
    kept, passes = kcore(
        users,
        items,
        min_user_count=job.min_user_count,
        min_item_count=job.min_item_count,
        kind=job.kcore,
    )
    if kept is not None:
        users, items = users[kept], items[kept]
        timestamps = None if timestamps is None else timestamps[kept]
        del kept
    if not len(users):
        raise nothing_left(job, ratings.num_rows)
    # Columns are let go of as soon as they are used: they decide the peak of memory.
    user_ids, user_map = dense_users(users, raw_users)
    del users
    keys = time_keys(user_ids, timestamps)
    del user_ids, timestamps
    order = np.argsort(keys, kind="stable")
    del keys
    item_ids, item_map = dense_items(items, raw_items)
    del items
    sequence_items = item_ids[order]
    del order, item_ids
    dropped = before - len(sequence_items)
    figures = FilterFigures(ratings.below_min_rating, dropped, passes)
    return collect(sequence_items, user_map, item_map, figures, reporter)


def nothing_left(job: RatingsJob, num_rows: int) -> PreprocError:
    """Returns the error for filters that drop every row."""
    return PreprocError(
        f"{job.input}: no interaction is left of {num_rows:,} after `min_rating` "
        f"{job.min_rating:g}, `min_user_count` {job.min_user_count} and `min_item_count` "
        f"{job.min_item_count} ({job.kcore}); lower them"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FilterFigures:
    """Counts of rows dropped by rating and by k-core."""

    below_min_rating: int
    dropped_by_kcore: int
    kcore_passes: int


def collect(
    items: npt.NDArray[np.int32],
    user_map: RawIds,
    item_map: RawIds,
    figures: FilterFigures,
    reporter: ProgressReporter,
) -> Filtered:
    """Returns the histories of all users.

    Args:
        items: [n] ids, ordered by user, then time.
        user_map: what the user ids stand for, and how many items each has.
        item_map: what the item ids stand for.
        figures: for the manifest.
        reporter: says what came out.
    """
    offsets = np.zeros(len(user_map) + 1, np.int64)
    np.cumsum(user_map.counts, out=offsets[1:])
    sequences = Sequences(items, offsets, len(item_map))
    statistics = {
        "users": len(user_map),
        "items": len(item_map),
        "interactions": len(items),
        "dropped_by_min_rating": figures.below_min_rating,
        "dropped_by_kcore": figures.dropped_by_kcore,
        "kcore_passes": figures.kcore_passes,
        "split_fingerprint": split_fingerprint(sequences, user_map, item_map),
    }
    reporter.note(
        f"{len(user_map):,} users, {len(item_map):,} items, {len(items):,} interactions; "
        f"dropped {figures.below_min_rating:,} by rating, {figures.dropped_by_kcore:,} by "
        f"{figures.kcore_passes} k-core passes"
    )
    return Filtered(sequences, user_map, item_map, statistics)


def time_keys(
    users: npt.NDArray[np.int32], timestamps: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.integer[Any]]:
    """Returns sort keys for user, then time, then file order.

    One key is sorted many times faster than two are.

    Args:
        users: [n] dense ids.
        timestamps: [n]; None means that the file is in time order.
    """
    if timestamps is None:
        return users
    first, last = int(timestamps.min()), int(timestamps.max())
    bits = (last - first).bit_length()
    if int(users.max()).bit_length() + bits > 63:  # times far apart: their ranks are enough
        distinct, timestamps = np.unique(timestamps, return_inverse=True)
        first, bits = 0, len(distinct).bit_length()
    keys = users.astype(np.int64)
    keys <<= bits
    keys += timestamps
    keys -= first
    return keys
