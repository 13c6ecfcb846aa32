# SPDX-License-Identifier: Apache-2.0
"""Splits a day of growing ratings: what was known before it, and what users did on it."""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.sequences.files import DAY_ROWS, read_item_map, read_user_map
from recsys.data.sequences.histories import Sequences, Targets, TemporalSplit
from recsys.errors import UserError
from recsys.ratings.data.temporal import RECENT_S, targets_between


def split_last_day(sequences: Sequences, root: Path) -> Sequences:
    """Makes the first item of each user on the last day the test target.

    Users without an item before that day have no target. Nothing is for validation.

    Args:
        sequences: histories of all days so far.
        root: dataset of the last day, which keeps the rows of all days.

    Raises:
        UserError: the dataset does not grow, is the first day, has no times, or the times of the
            last day overlap with those before; or no earlier user comes back.
    """
    paths = sorted((root / DAY_ROWS).glob("*.parquet"))
    if len(paths) < 2 or sequences.temporal is not None:
        raise _refused(f"{root}: is not a further day of growing ratings that holds out last items")
    users, items = read_user_map(root).raw, read_item_map(root).raw
    tables = [pq.read_table(path) for path in paths]
    if "timestamp" not in tables[-1].column_names:
        raise _refused(f"{root}: its rows have no times")
    *earlier, last = [_numbers(table, users, items) for table in tables]
    cut = last.times.min()
    latest = max(day.times.max() for day in earlier if len(day.times))
    if latest >= cut:
        raise _refused(
            f"{root}: the last day begins at {cut}, but an earlier one goes on until {latest}; "
            "give days that follow each other in time"
        )
    on_last_day = np.bincount(last.users, minlength=sequences.num_users)
    before = sequences.lengths - on_last_day
    counts = np.zeros(sequences.num_items, np.int64)
    recent = counts.copy()
    for day in earlier:
        counts += np.bincount(day.items, minlength=sequences.num_items)
        is_recent = day.times >= cut - RECENT_S
        recent += np.bincount(day.items[is_recent], minlength=sequences.num_items)
    targets = targets_between(before, sequences.lengths, "first")
    if not len(targets):
        raise _refused(f"{root}: no user of the days before comes back on the last day")
    nobody = np.empty(0, np.int64)
    temporal = TemporalSplit(
        cut=float(cut),
        train_lengths=before,
        validation=Targets(nobody, nobody),
        test=targets,
        before=before,
        is_cold=counts == 0,
        recent_counts=recent,
    )
    return dataclasses.replace(sequences, temporal=temporal)


def _refused(why: str) -> UserError:
    return UserError(f"`progressive`: {why}", setting="progressive")


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """Kept rows of a day: [N] user and item numbers from 0, and times."""

    users: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    times: npt.NDArray[np.generic]


def _numbers(table: pa.Table, users: pa.Array, items: pa.Array) -> _Rows:
    """Numbers the rows of a day whose user and item are in the dataset."""
    numbers = [pc.index_in(table[name], ids) for name, ids in (("user", users), ("item", items))]
    kept = pc.and_(*(pc.is_valid(each) for each in numbers))
    made = (pc.filter(each, kept).to_numpy() for each in (*numbers, table["timestamp"]))
    of_users, of_items, times = made
    return _Rows(of_users.astype(np.int64), of_items.astype(np.int64), times)
