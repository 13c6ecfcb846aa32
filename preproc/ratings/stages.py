# SPDX-License-Identifier: Apache-2.0
"""The recipe of ratings: from the rows of a file to histories, whichever engine holds the rows."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from preproc.files.progress import ProgressReporter
from preproc.files.text_chunks import BoolArray
from preproc.ratings.format import ITEM, TIMESTAMP, USER
from preproc.ratings.job import RatingsJob
from preproc.ratings.parse import Interactions
from preproc.ratings.read import ReadRows, nothing_left
from recsys.data.sequences.histories import RawIds, Sequences, order_raw_ids
from recsys.data.sequences.split import split_fingerprint

FIRST_IDS = {USER: 0, ITEM: 1}
"""The first dense id of each column."""

_SLICE_ROWS = 2**20


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


@dataclasses.dataclass(frozen=True, slots=True)
class Ordered:
    """Rows by user, time and place in the file.

    Attributes:
        items: [rows] dense ids.
        is_tied: [rows] whether user and time are those of the row before; None if the file has no
            times.
        times: [rows], None if the split needs none.
    """

    items: npt.NDArray[np.int32]
    is_tied: BoolArray | None
    times: npt.NDArray[np.int64] | None


class EngineRows(Protocol):
    """The rows of a run, in the hands of an engine.

    Each method raises PreprocError if the engine fails.

    Attributes:
        engine: its name and version, for the manifest.
    """

    engine: dict[str, str]

    @property
    def num_rows(self) -> int:
        """Rows that are left."""

    def add(self, rows: Interactions) -> None:
        """Appends rows of the file, none below `min_rating`."""

    def finish(self) -> None:
        """Ends the rows that are added, at least one."""

    def drop_rare(self, minimums: Mapping[str, int]) -> None:
        """Drops the rows of ids with fewer rows than the minimum of their column.

        One column after the other: the next one counts the rows that are left.
        """

    def number(self) -> dict[str, RawIds]:
        """Replaces the ids of each column by dense ones; returns the raw ids."""

    def ordered(self, *, with_times: bool) -> Ordered:
        """Gives the rows away, in order."""


OpenRows = Callable[[RatingsJob, Path, ProgressReporter], AbstractContextManager[EngineRows]]
"""Starts an engine for a job; its folder, on storage that executors see, is for temporary files.

Raises PreprocError if the engine is missing.
"""


def run_stages(
    job: RatingsJob, rows: EngineRows, read: ReadRows, reporter: ProgressReporter
) -> Filtered:
    """Filters, numbers and orders the rows that were read; returns the histories of all users.

    A pass of the k-core drops the items with too few interactions, then the users with too few
    among the rest. Repeats of a pair count each time. `once` makes one pass, after which items may
    be short again; `iterated` makes passes until one drops nothing, with the same result in any
    order of dropping.

    Raises:
        PreprocError: the engine failed, or no row passes the filters.
    """
    rows.finish()
    minimums = {column: minimum for column, minimum in job.min_counts.items() if minimum > 1}
    passes = 0
    while before := rows.num_rows:
        rows.drop_rare(minimums)
        if rows.num_rows == before:
            break
        passes += 1
        if job.kcore == "once":
            break
    if not rows.num_rows:
        raise nothing_left(job, read.num_rows)
    ids = rows.number()
    users, items = ids[USER], ids[ITEM]
    ordered = rows.ordered(with_times=job.quantile is not None)
    offsets = np.zeros(len(users) + 1, np.int64)
    np.cumsum(users.counts, out=offsets[1:])
    assert len(ordered.items) == offsets[-1], "the engine lost rows"
    sequences = Sequences(ordered.items, offsets, len(items), ordered.times)
    dropped_by_kcore = read.num_left - len(ordered.items)
    statistics = {
        "users": len(users),
        "items": len(items),
        "interactions": len(ordered.items),
        "dropped_by_min_rating": read.below_min_rating,
        "dropped_by_kcore": dropped_by_kcore,
        "kcore_passes": passes,
        "split_fingerprint": split_fingerprint(sequences, users, items),
    }
    if ordered.is_tied is not None:
        statistics["repeated_rows"] = _count_repeats(ordered.items, ordered.is_tied)
    reporter.note(
        f"{len(users):,} users, {len(items):,} items, {len(ordered.items):,} interactions; "
        f"dropped {read.below_min_rating:,} by rating, {dropped_by_kcore:,} by "
        f"{passes} k-core passes"
    )
    return Filtered(sequences, users, items, statistics)


def order_ids(column: str, ids: RawIds) -> npt.NDArray[np.int64]:
    """Returns the indices of raw ids in the order of dense ids.

    Users are ordered by raw id, items by count descending, then raw id.
    """
    order = order_raw_ids(ids.raw)
    return order if column == USER else order[np.argsort(-ids.counts[order], kind="stable")]


def order_rows(columns: dict[str, npt.NDArray[Any]], *, with_times: bool) -> Ordered:
    """Orders rows in file order by user and time; takes the columns out of their dictionary."""
    # Each column is let go after its last use, because they decide the peak of memory.
    has_times = TIMESTAMP in columns
    keys = _time_keys(columns.pop(USER), columns.get(TIMESTAMP))
    if not with_times:
        columns.pop(TIMESTAMP, None)
    order = np.argsort(keys, kind="stable")
    is_tied = _ties(keys, order) if has_times else None
    del keys
    items = columns.pop(ITEM)[order]
    return Ordered(items, is_tied, columns.pop(TIMESTAMP)[order] if with_times else None)


def _count_repeats(items: npt.NDArray[np.int32], is_tied: BoolArray) -> int:
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


def _ties(keys: npt.NDArray[np.integer[Any]], order: npt.NDArray[np.int64]) -> BoolArray:
    """Returns a mask of rows, ordered by key, whose key repeats."""
    is_tied = np.zeros(len(order), np.bool_)
    for start in range(0, len(order), _SLICE_ROWS):  # ordered keys of all rows would be the peak
        stop = start + _SLICE_ROWS
        ordered = keys[order[max(start - 1, 0) : stop]]
        is_tied[max(start, 1) : stop] = ordered[1:] == ordered[:-1]
    return is_tied


def _time_keys(
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
