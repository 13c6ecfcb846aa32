# SPDX-License-Identifier: Apache-2.0
"""Samples unseen items, the candidates of sampled rankings.

Letters: U users, I items, S negatives of a user.
"""

import numpy as np
import numpy.typing as npt

from recsys.data.sequences import Sequences


def draw_negatives(
    sequences: Sequences, count: int, *, by_popularity: bool, seed: int
) -> npt.NDArray[np.int32]:
    """Draws negatives for every user, the same ones for validation and test.

    Args:
        sequences: of all users; none of a user's items, held-out ones included, is drawn for it.
        count: S.
        by_popularity: draw in proportion to the number of interactions, otherwise uniformly.
        seed: of the draws.

    Returns:
        [U, S] item numbers, no two of a user alike.

    Raises:
        ValueError: a user has met so many items that fewer than S are left.
    """
    left = sequences.num_items - int(_distinct_items(sequences).max())
    if left < count:
        raise ValueError(
            f"a user has met all but {left} of {sequences.num_items} items, yet --num_eval_"
            f"negatives asks for {count} others"
        )
    counts = np.bincount(sequences.items, minlength=sequences.num_items + 1)[1:].astype(np.float64)
    weights = counts if by_popularity else np.ones(sequences.num_items)
    if by_popularity and np.count_nonzero(weights) < sequences.num_items:
        weights = weights + np.where(weights == 0, 1e-12, 0)  # drawn when nothing else is left
    cumulative = weights.cumsum() / weights.sum()
    generator = np.random.default_rng(seed)
    negatives = np.zeros((sequences.num_users, count), np.int32)
    filled = np.zeros(sequences.num_users, np.int64)
    known = np.unique(_pairs(sequences))
    while True:
        users = np.flatnonzero(filled < count)
        if not len(users):
            return negatives
        drawn = np.searchsorted(cumulative, generator.random((len(users), 2 * count))) + 1
        drawn = np.minimum(drawn, sequences.num_items)
        pairs = users[:, None] * (sequences.num_items + 1) + drawn
        new = _first_of_each(pairs) & ~_is_in(pairs, known)
        column_of = filled[users, None] + new.cumsum(1) - 1
        row, column = np.nonzero(new & (column_of < count))
        negatives[users[row], column_of[row, column]] = drawn[row, column]
        filled[users] = np.minimum(filled[users] + new.sum(1), count)
        known = np.union1d(known, pairs[row, column])


def _pairs(sequences: Sequences) -> npt.NDArray[np.int64]:
    users = np.repeat(np.arange(sequences.num_users), sequences.lengths)
    return users * (sequences.num_items + 1) + sequences.items


def _distinct_items(sequences: Sequences) -> npt.NDArray[np.int64]:
    pairs = np.unique(_pairs(sequences))
    return np.bincount(pairs // (sequences.num_items + 1), minlength=sequences.num_users)


def _is_in(values: npt.NDArray[np.int64], ordered: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    nearest = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    is_in: npt.NDArray[np.bool_] = ordered[nearest] == values
    return is_in


def _first_of_each(values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Marks, in each row, the first of equal values."""
    order = values.argsort(1, kind="stable")
    ordered = np.take_along_axis(values, order, 1)
    first = np.ones(values.shape, np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    marked = np.empty_like(first)
    np.put_along_axis(marked, order, first, 1)
    return marked
