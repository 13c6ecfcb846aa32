# SPDX-License-Identifier: Apache-2.0
"""Histories of all users, and the contract of the engines."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.files.progress import ProgressReporter
from preproc.files.text_chunks import BoolArray
from preproc.ratings.job import RatingsJob
from preproc.ratings.read import ReadRows, Sink
from recsys.data.sequences.histories import RawIds, Sequences
from recsys.data.sequences.split import split_fingerprint


@dataclasses.dataclass(frozen=True, slots=True)
class Filtered:
    """Interactions that pass the filters.

    Attributes:
        sequences: histories in dense ids.
        users: raw user ids and their counts, in id order.
        items: raw item ids and their counts, in id order.
        statistics: counts and fingerprint for the manifest.
    """

    sequences: Sequences
    users: RawIds
    items: RawIds
    statistics: dict[str, Any]


_SLICE_ROWS = 2**20

Read = Callable[[Sink], ReadRows]
"""Reads the ratings file of the run into a sink, which gets a row at least."""

Engine = Callable[[RatingsJob, Read, Path, ProgressReporter], tuple[Filtered, dict[str, Any]]]
"""Makes the histories of a ratings file; returns them, and `engine` of the manifest.

The job is resolved, with both minimum counts. The folder, for temporary files on storage that
executors see, exists and is removed by the caller. Raises PreprocError if the engine is missing or
fails, or no row passes the filters.
"""


def collect(
    items: npt.NDArray[np.int32],
    timestamps: npt.NDArray[np.int64] | None,
    user_map: RawIds,
    item_map: RawIds,
    is_tied: BoolArray | None,
    read: ReadRows,
    passes: int,
    reporter: ProgressReporter,
) -> Filtered:
    """Cuts the items of all users into histories.

    Args:
        items: [interactions] dense ids, ordered by user, then time.
        timestamps: [interactions]; None if the split needs none.
        user_map: raw user ids and the lengths of their histories, in id order.
        item_map: raw item ids and their counts, in id order.
        is_tied: [interactions] see `ties`; None if the file has no times.
        read: rows of the file, for the manifest.
        passes: k-core passes that dropped rows.
        reporter: prints the counts.
    """
    offsets = np.zeros(len(user_map) + 1, np.int64)
    np.cumsum(user_map.counts, out=offsets[1:])
    sequences = Sequences(items, offsets, len(item_map), timestamps)
    dropped_by_kcore = read.num_left - len(items)
    statistics = {
        "users": len(user_map),
        "items": len(item_map),
        "interactions": len(items),
        "dropped_by_min_rating": read.below_min_rating,
        "dropped_by_kcore": dropped_by_kcore,
        "kcore_passes": passes,
        "split_fingerprint": split_fingerprint(sequences, user_map, item_map),
    }
    if is_tied is not None:
        statistics["repeated_rows"] = count_repeats(items, is_tied)
    reporter.note(
        f"{len(user_map):,} users, {len(item_map):,} items, {len(items):,} interactions; "
        f"dropped {read.below_min_rating:,} by rating, {dropped_by_kcore:,} by "
        f"{passes} k-core passes"
    )
    return Filtered(sequences, user_map, item_map, statistics)


def count_repeats(items: npt.NDArray[np.int32], is_tied: BoolArray) -> int:
    """Counts rows that repeat an earlier one: same user, item, time."""
    repeats, start = 0, 0
    while start < len(items):
        stop = min(start + _SLICE_ROWS, len(items))
        if stop < len(items):  # a slice ends where user or time changes
            changes = np.argmin(is_tied[stop:])
            stop = len(items) if is_tied[stop + changes] else stop + int(changes)
        tied = is_tied[start:stop]
        in_group = tied.copy()
        in_group[:-1] |= tied[1:]
        keys = np.cumsum(~tied)[in_group] << 32 | items[start:stop][in_group]
        keys.sort()
        repeats += int(np.count_nonzero(keys[1:] == keys[:-1]))
        start = stop
    return repeats


def ties(keys: npt.NDArray[np.integer[Any]], order: npt.NDArray[np.int64]) -> BoolArray:
    """Returns a mask of rows, ordered by key, whose key repeats."""
    is_tied = np.zeros(len(order), np.bool_)
    for start in range(0, len(order), _SLICE_ROWS):  # ordered keys of all rows would be the peak
        stop = start + _SLICE_ROWS
        ordered = keys[order[max(start - 1, 0) : stop]]
        is_tied[max(start, 1) : stop] = ordered[1:] == ordered[:-1]
    return is_tied


def time_keys(
    users: npt.NDArray[np.int32], timestamps: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.integer[Any]]:
    """Returns sort keys [rows] by user, then time, for a stable sort.

    One key is sorted many times faster than two. Without times, it is the file order.
    """
    if timestamps is None:
        return users
    first, last = int(timestamps.min()), int(timestamps.max())
    bits = (last - first).bit_length()
    if int(users.max()).bit_length() + bits > 63:  # too wide a range: use ranks of times
        distinct, timestamps = np.unique(timestamps, return_inverse=True)
        first, bits = 0, len(distinct).bit_length()
    keys = users.astype(np.int64)
    keys <<= bits
    keys += timestamps
    keys -= first
    return keys
