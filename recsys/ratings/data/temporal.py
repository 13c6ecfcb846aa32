# SPDX-License-Identifier: Apache-2.0
"""Splits histories by time, and finds cold users and items."""

import dataclasses
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from recsys.data.sequences.histories import Sequences, Targets, TemporalSplit, numbered
from recsys.data.sequences.split import counts_before, cut_time, lengths_before
from recsys.errors import UserError
from recsys.ratings.config import TemporalTargets, TemporalValidation
from recsys.ratings.data.split import is_among_first

_VALIDATION_USERS = 10
"""One user in this many validates, if the validation holds out users."""
RECENT_S = 7 * 24 * 3600
"""Seconds before the cut in which popularity is recent."""


def split_by_time(
    sequences: Sequences,
    quantile: Fraction,
    choice: TemporalTargets,
    validation: TemporalValidation,
    raw_users: pa.Array,
) -> Sequences:
    """Splits histories at the `cut_time` of all interactions.

    Users without an item before the cut have no target. A target's history is everything that its
    user did before it.

    Args:
        sequences: histories with timestamps.
        quantile: fraction of the interactions before the cut.
        choice: which of a user's items from the cut on are targets.
        validation: `time` cuts the interactions before the cut once more, by the same rules;
            `users` holds one user in ten out of the training, and their targets are their last
            items before the cut.
        raw_users: [U] raw ids of the users; their hashes choose that tenth.

    Raises:
        UserError: nothing is left to train on, to validate or to test.
    """
    times = sequences.timestamps
    if times is None:
        raise UserError(
            "`split`: the dataset has no timestamps; prepare the ratings again with this `split`",
            setting="split",
        )
    cut = cut_time(times, quantile)
    before, end = lengths_before(sequences, cut), cut
    if validation == "time":
        earlier = times[times < cut]
        first = cut_time(earlier, quantile) if len(earlier) else cut
        train_lengths, end = lengths_before(sequences, first), first
        validated = targets_between(train_lengths, before, choice)
    else:
        is_chosen = _is_for_validation(raw_users) & (before > 1)
        train_lengths = np.where(is_chosen, 0, before)
        users = np.flatnonzero(is_chosen)
        validated = Targets(users, before[users] - 1)
    test = targets_between(before, sequences.lengths, choice)
    for name, left in (("to train on", train_lengths.any()), ("to validate", len(validated)),
                       ("to test", len(test))):  # fmt: skip
        if not left:
            raise UserError(
                f"`split`: the cut at {cut} leaves nothing {name} with `temporal_validation` "
                f"{validation}; prepare the ratings with another fraction",
                settings=("split", "temporal_validation"),
            )
    is_recent = is_among_first(sequences, train_lengths) & (times >= end - RECENT_S)
    recent = sequences.items[is_recent]
    recent_counts = np.bincount(recent, minlength=sequences.num_items + 1)[1:]
    is_cold = counts_before(sequences, cut) == 0
    temporal = TemporalSplit(cut, train_lengths, validated, test, before, is_cold, recent_counts)
    return dataclasses.replace(sequences, timestamps=None, temporal=temporal)


def targets_between(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], choice: TemporalTargets
) -> Targets:
    """Returns targets among the positions [starts, ends) of histories.

    Args:
        starts: [U] items before the range; users with 0 have no target.
        ends: [U] items before the end of the range.
        choice: the first or the last position of each user, or all.
    """
    users = np.flatnonzero((starts > 0) & (ends > starts))
    starts, ends = starts[users], ends[users]
    if choice != "all":
        return Targets(users, starts if choice == "first" else ends - 1)
    counts = ends - starts
    return Targets(np.repeat(users, counts), np.repeat(starts, counts) + numbered(counts))


def _is_for_validation(raw_users: pa.Array) -> npt.NDArray[np.bool_]:
    """Draws users by a hash of their own raw ids."""
    drawn = (
        xxhash.xxh3_64_intdigest(raw.encode()) % _VALIDATION_USERS for raw in raw_users.to_pylist()
    )
    return np.fromiter((number == 0 for number in drawn), np.bool_, len(raw_users))
