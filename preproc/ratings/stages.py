# SPDX-License-Identifier: Apache-2.0
"""The recipe of ratings, from the rows of a file to histories; the same for all engines."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
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
    """Rows ordered by user, time and position in the file.

    Attributes:
        items: [rows] dense ids.
        is_tied: [rows] whether the row has the user and time of the row before; None if the file
            has no times.
        times: [rows]; None if the split does not need them.
    """

    items: npt.NDArray[np.int32]
    is_tied: BoolArray | None
    times: npt.NDArray[np.int64] | None


class EngineRows(Protocol):
    """The rows of a run, held by an engine.

    Every method raises PreprocError if the engine fails.

    Attributes:
        engine: name and version of the engine, for the manifest.
    """

    engine: dict[str, str]

    @property
    def num_rows(self) -> int:
        """Rows that are left."""

    def add(self, rows: Interactions) -> None:
        """Appends rows of the file; none is below `min_rating`."""

    def finish(self) -> None:
        """Completes the rows once all are added; there is at least one."""

    def drop_rare(self, minimums: Mapping[str, int]) -> None:
        """Drops the rows of ids with fewer rows than the minimum of their column.

        Columns are filtered one after the other; the next one counts only the rows that are left.
        """

    def number(self) -> dict[str, RawIds]:
        """Replaces the ids of each column by dense ones; returns the raw ids."""

    def ordered(self, *, with_times: bool) -> Ordered:
        """Returns the rows in order, and gives them up."""


OpenRows = Callable[[RatingsJob, Path, ProgressReporter], AbstractContextManager[EngineRows]]
"""Starts an engine for a job. The folder is for temporary files, on storage that executors see.

Raises PreprocError if the engine is missing.
"""


def run_stages(
    job: RatingsJob, rows: EngineRows, read: ReadRows, reporter: ProgressReporter
) -> Filtered:
    """Filters, numbers and orders the rows that were read; returns the histories of all users.

    A pass of the k-core drops items with too few interactions, then users with too few of the
    remaining ones. Repeated (user, item) pairs count every time. `once` makes one pass, after which
    some items may be below the limit again. `iterated` repeats passes until one drops nothing; the
    order of dropping does not affect the result.

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

    Users are ordered by raw id; items by count descending, then raw id.
    """
    order = order_raw_ids(ids.raw)
    return order if column == USER else order[np.argsort(-ids.counts[order], kind="stable")]


def order_rows(columns: dict[str, npt.NDArray[Any]], *, with_times: bool) -> Ordered:
    """Sorts rows, given in file order, by user and time; removes the columns from `columns`."""
    # Each column is released after its last use, because columns determine the peak memory.
    has_times = TIMESTAMP in columns
    keys = _time_keys(columns.pop(USER), columns.get(TIMESTAMP))
    if not with_times:
        columns.pop(TIMESTAMP, None)
    order = np.argsort(keys)  # several times faster than a stable sort
    is_tied = _ties(keys, order)
    del keys
    bits = len(order).bit_length()
    for rows, group in _tied_rows(is_tied):  # in file order
        by_group = group << bits | order[rows]
        by_group.sort()
        order[rows] = by_group & ((1 << bits) - 1)
    items = columns.pop(ITEM)[order]
    times = columns.pop(TIMESTAMP)[order] if with_times else None
    return Ordered(items, is_tied if has_times else None, times)


def _tied_rows(
    is_tied: BoolArray,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yields places of rows with a key that others have too, and the number of each one's group.

    About a million rows at a time. `is_tied` is what `_ties` returned.
    """
    start = 0
    while start < len(is_tied):
        stop = min(start + _SLICE_ROWS, len(is_tied))
        if stop < len(is_tied):  # a slice ends where user or time changes
            changes = np.argmin(is_tied[stop:])
            stop = len(is_tied) if is_tied[stop + changes] else stop + int(changes)
        tied = is_tied[start:stop]
        in_group = tied.copy()
        in_group[:-1] |= tied[1:]
        yield np.flatnonzero(in_group) + start, np.cumsum(~tied, dtype=np.int64)[in_group]
        start = stop


def _count_repeats(items: npt.NDArray[np.int32], is_tied: BoolArray) -> int:
    """Counts rows that repeat an earlier one (same user, item and time)."""
    repeats = 0
    for rows, group in _tied_rows(is_tied):
        keys = group << 32 | items[rows]
        keys.sort()
        repeats += int(np.count_nonzero(keys[1:] == keys[:-1]))
    return repeats


def _ties(keys: npt.NDArray[np.integer[Any]], order: npt.NDArray[np.int64]) -> BoolArray:
    """Returns a mask of the rows, ordered by key, that have the key of the row before."""
    is_tied = np.zeros(len(order), np.bool_)
    for start in range(
        0, len(order), _SLICE_ROWS
    ):  # sorting all keys at once would set the peak memory
        stop = start + _SLICE_ROWS
        ordered = keys[order[max(start - 1, 0) : stop]]
        is_tied[max(start, 1) : stop] = ordered[1:] == ordered[:-1]
    return is_tied


def _time_keys(
    users: npt.NDArray[np.int32], timestamps: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.integer[Any]]:
    """Returns sort keys [rows] by user, then time, for a stable sort.

    Sorting one key is many times faster than sorting two. Without times, only users are compared.
    """
    if timestamps is None:
        return users
    first, last = int(timestamps.min()), int(timestamps.max())
    bits = (last - first).bit_length()
    if int(users.max()).bit_length() + bits > 63:  # the range is too wide: use ranks of times
        distinct, timestamps = np.unique(timestamps, return_inverse=True)
        first, bits = 0, len(distinct).bit_length()
    keys = users.astype(np.int64)
    keys <<= bits
    keys += timestamps
    keys -= first
    return keys
