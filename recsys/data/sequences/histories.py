# SPDX-License-Identifier: Apache-2.0
"""Histories of users, raw ids, and targets of a split."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.arrow_columns import column_of, numbers_of
from recsys.data.errors import DatasetError

MIN_LENGTH = 3
"""Length of the shortest sequence: one item each for training, validation and test."""

_AGAIN = "prepare the dataset again"

Times = npt.NDArray[np.integer[Any] | np.floating[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Targets:
    """Items to predict, each from the history before it.

    Attributes:
        users: [T] int64 user of each target.
        known: [T] int64 number of items in that user's history before the target.
    """

    users: npt.NDArray[np.int64]
    known: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.users)


@dataclasses.dataclass(frozen=True, slots=True)
class TemporalSplit:
    """A split of histories by time.

    Attributes:
        cut: earliest time that is held out for the test.
        train_lengths: [U] number of items at the start of each history to train on.
        validation: targets before the cut.
        test: targets from the cut on.
        before: [U] number of items of each history before the cut; 0 makes a user cold.
        is_cold: [I] bool, items that nobody met before the cut.
        recent_counts: [I] int64 occurrences of each item in the last seven days of training.
    """

    cut: float
    train_lengths: npt.NDArray[np.int64]
    validation: Targets
    test: Targets
    before: npt.NDArray[np.int64]
    is_cold: npt.NDArray[np.bool_]
    recent_counts: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Sequences:
    """The histories of all users, in time order.

    User u has `items[offsets[u] : offsets[u + 1]]`. Without a temporal split, the last item is for
    the test, the last but one for validation, and the rest for training. If only some users
    validate, the others train on their last item but one.

    Attributes:
        items: int32 item numbers, from 1 to `num_items`, one user after the other.
        offsets: [U + 1] int64 index of each user's first item, then the number of all items.
        num_items: number of items of the catalogue; number 0 is padding.
        timestamps: time of each of `items`; None if the dataset does not keep times.
        temporal: split by time; None holds out each user's last items.
        validation_users: [V] int64 users, ascending, that have a validation target if there is no
            temporal split; None for all users.
    """

    items: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    num_items: int
    timestamps: Times | None = None
    temporal: TemporalSplit | None = None
    validation_users: npt.NDArray[np.int64] | None = None

    @property
    def num_users(self) -> int:
        """Users, numbered from 0."""
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> npt.NDArray[np.int32]:
        """Returns the whole history of a user, as a view."""
        if not 0 <= user < self.num_users:
            raise IndexError(f"user {user} of {self.num_users}")
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[U] number of items of each user."""
        return np.diff(self.offsets)

    @property
    def test_items(self) -> npt.NDArray[np.int32]:
        """[U] last item of each user."""
        return self.items[self.offsets[1:] - 1]

    @property
    def validation_items(self) -> npt.NDArray[np.int32]:
        """[U] last item but one of each user."""
        return self.items[self.offsets[1:] - 2]

    def user_item_pairs(self) -> npt.NDArray[np.int64]:
        """Returns one number for each pair of an item in `items` and its user.

        Returns:
            [N] int64, user * (num_items + 1) + item.
        """
        users = np.repeat(np.arange(self.num_users), self.lengths)
        return users * (self.num_items + 1) + self.items

    def check(self, where: Path | str) -> None:
        """Refuses sequences that violate the format.

        Raises:
            DatasetError: a sequence is too short, or an id is outside the catalogue.
        """
        short = np.flatnonzero(self.lengths < MIN_LENGTH)
        if len(short):
            raise DatasetError(
                f"{where}: user {short[0]} has {self.lengths[short[0]]} items, but the shortest "
                f"sequence that can be split has {MIN_LENGTH}; {_AGAIN}"
            )
        if not len(self.items):
            return
        if self.items.min() < 1 or self.items.max() > self.num_items:
            first_bad = int(np.argmax((self.items < 1) | (self.items > self.num_items)))
            user = int(np.searchsorted(self.offsets, first_bad, side="right")) - 1
            raise DatasetError(
                f"{where}: user {user} has the item {self.items[first_bad]}, but ids must lie in "
                f"[1, {self.num_items}]; {_AGAIN}"
            )
        if self.timestamps is not None:
            self._check_times(self.timestamps, where)

    def _check_times(self, times: Times, where: Path | str) -> None:
        is_later = np.ones(len(times), np.bool_)
        is_later[1:] = times[1:] >= times[:-1]
        is_later[self.offsets[:-1]] = times[self.offsets[:-1]] == times[self.offsets[:-1]]  # no NaN
        if not is_later.all():
            user = int(np.searchsorted(self.offsets, np.argmin(is_later), side="right")) - 1
            raise DatasetError(f"{where}: the timestamps of user {user} go backwards; {_AGAIN}")


@dataclasses.dataclass(frozen=True, slots=True)
class RawIds:
    """Raw ids and counts, in the order of users or items.

    Attributes:
        raw: raw ids as strings.
        counts: number of interactions of each id.
    """

    raw: pa.Array
    counts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, order: npt.NDArray[np.int64]) -> "RawIds":
        """Returns the ids at some indices, in the order of the indices."""
        return RawIds(self.raw.take(column_of(order)), self.counts[order])


def order_raw_ids(raw: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the order that sorts raw ids by length, then by bytes.

    For integers without leading zeros this is the order of their values.
    """
    table = pa.table({"length": pc.binary_length(raw), "raw": raw})
    keys = [("length", "ascending"), ("raw", "ascending")]
    order: npt.NDArray[np.uint64] = numbers_of(pc.sort_indices(table, sort_keys=keys))
    return order.astype(np.int64)


def numbered(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns 0 .. count - 1 for each count, concatenated."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - counts, counts)
