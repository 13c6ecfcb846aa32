# SPDX-License-Identifier: Apache-2.0
"""Splits whole histories into items to train on and targets.

Without a temporal split, a user's last item is the test target and the one before it the validation
target; the rest is for training. Users that do not validate also train on their last item but one.
`recsys.ratings.data.temporal` splits by time.
"""

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from recsys.data.sequences.histories import Sequences, Targets, numbered
from recsys.errors import UserError

Split = Literal["train", "validation", "test"]

_HELD_OUT: dict[Split, int] = {"train": 2, "validation": 2, "test": 1}
"""Number of items at the end of a history that are hidden from the model."""


def training_lengths(sequences: Sequences) -> npt.NDArray[np.int64]:
    """Returns [U] int64, how many items at the start of each history to train on."""
    if sequences.temporal is not None:
        return sequences.temporal.train_lengths
    if sequences.validation_users is None:
        return sequences.lengths - _HELD_OUT["train"]
    known = sequences.lengths - _HELD_OUT["test"]
    known[sequences.validation_users] -= 1
    return known


def positions_of(sequences: Sequences) -> npt.NDArray[np.int64]:
    """Returns [N] int64 positions of all items in their histories, from 0."""
    return numbered(sequences.lengths)


def is_trained_on(sequences: Sequences) -> npt.NDArray[np.bool_]:
    """Returns [N], True for the items to train on."""
    return is_among_first(sequences, training_lengths(sequences))


def is_among_first(sequences: Sequences, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns [N], True for the first `counts` items of each history."""
    return positions_of(sequences) < np.repeat(counts, sequences.lengths)


def targets_of(sequences: Sequences, split: Split) -> Targets:
    """Returns the targets of `validation` or `test`, in the order of users."""
    if sequences.temporal is not None:
        temporal = sequences.temporal
        return temporal.test if split == "test" else temporal.validation
    users = np.arange(sequences.num_users)
    if split == "validation" and sequences.validation_users is not None:
        users = sequences.validation_users
    return Targets(users, sequences.lengths[users] - _HELD_OUT[split])


def validate_some_users(sequences: Sequences, count: int, raw_users: pa.Array) -> Sequences:
    """Limits validation to some users; the others train on their validation target too.

    Args:
        sequences: histories without a temporal split.
        count: V, the users that validate.
        raw_users: [U] raw ids of the users; the V users with the smallest hashes validate.

    Raises:
        UserError: the dataset has fewer than V users.
    """
    if count > sequences.num_users:
        raise UserError(
            f"`validation_users` {count}: the dataset has only {sequences.num_users} users; leave "
            "it out to validate on all of them",
            setting="validation_users",
        )
    hashes = [xxhash.xxh3_64_intdigest(raw.encode()) for raw in raw_users.to_pylist()]
    order = np.argsort(np.array(hashes, np.uint64), kind="stable")
    return dataclasses.replace(sequences, validation_users=np.sort(order[:count]))


def count_targets(sequences: Sequences, split: Split) -> str:
    """Returns how many targets and users a split has, as text."""
    targets = targets_of(sequences, split)
    users = f"{len(np.unique(targets.users))} users"
    return users if sequences.temporal is None else f"{len(targets)} targets of {users}"


def count_users(sequences: Sequences, least_items: int) -> str:
    """Returns how many users train, validate, test, and do none of these, as text.

    Args:
        least_items: fewest items to train on with which a user is trained on.
    """
    trains = training_lengths(sequences) >= least_items
    left_out = ~trains
    for split in ("validation", "test"):
        left_out[targets_of(sequences, split).users] = False
    return (
        f"{trains.sum()} of {len(trains)} users train, with {least_items} or more items to "
        f"train on; {count_targets(sequences, 'validation')} validate, "
        f"{count_targets(sequences, 'test')} test; {left_out.sum()} users are in no split"
    )


def known_lengths(sequences: Sequences, split: Split) -> npt.NDArray[np.int64]:
    """Counts the items of a history before each target of a split.

    Returns:
        [T] int64; for `train`, [U] items to train on.
    """
    if split == "train":
        return training_lengths(sequences)
    return targets_of(sequences, split).known


def known_items(
    sequences: Sequences, split: Split, rows: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Returns the items before some targets of `validation` or `test`.

    Args:
        split: `validation` or `test`.
        rows: [B] int64 numbers of targets, from 0.
    """
    targets = targets_of(sequences, split)
    pairs = zip(targets.users[rows].tolist(), targets.known[rows].tolist(), strict=True)
    return [sequences[user][:known].astype(np.int64) for user, known in pairs]


def true_items(sequences: Sequences, split: Split) -> npt.NDArray[np.int32]:
    """Returns [T] int32, the targets of `validation` or `test`."""
    items: npt.NDArray[np.int32] = sequences.items[_index_of_targets(sequences, split)]
    return items


def repeated_targets(sequences: Sequences, split: Split) -> npt.NDArray[np.bool_]:
    """Returns [T] bool, True where a target already occurs earlier in its user's history."""
    _, first = np.unique(sequences.user_item_pairs(), return_index=True)
    return np.isin(_index_of_targets(sequences, split), first, invert=True)


def _index_of_targets(sequences: Sequences, split: Split) -> npt.NDArray[np.int64]:
    targets = targets_of(sequences, split)
    index: npt.NDArray[np.int64] = sequences.offsets[targets.users] + targets.known
    return index


def sorted_distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the distinct values of non-negative numbers, ascending.

    NumPy's `unique` builds a hash table and takes sixty times as long.
    """
    values = np.sort(values)
    return values[np.diff(values, prepend=-1) > 0]
