# SPDX-License-Identifier: Apache-2.0
"""Negatives of each user to rank a target among, and the popularity of items."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.split import is_trained_on, sorted_distinct

_ROUNDS = 8
"""Rounds of drawing with replacement; each draws twice as many as are asked for."""
_BLOCK_USERS = 256
_AFTER_ALL = 1e3
"""More than any exponential variate that float64 can hold; those are below 100."""


def log_popularity(sequences: Sequences) -> Tensor:
    """Returns [I] float32 logarithms of each item's share of the interactions.

    One is added to each count, because some items are only validation or test targets.
    """
    counts = torch.from_numpy(training_counts(sequences).astype(np.float64) + 1.0)
    return (counts / counts.sum()).log().to(torch.float32)


def training_counts(sequences: Sequences) -> npt.NDArray[np.int64]:
    """Returns [I] occurrences of each item in the training split."""
    items = sequences.items[is_trained_on(sequences)]
    return np.bincount(items, minlength=sequences.num_items + 1)[1:]


def draw_negatives(
    sequences: Sequences, count: int, *, by_popularity: bool, seed: int
) -> npt.NDArray[np.int32]:
    """Draws negatives for every user, the same ones for validation and test.

    Each draw picks one of the items left, in proportion to their weights; items of weight 0 are
    drawn only when no others are left.

    Args:
        sequences: histories of all users; a user's own items, targets included, are never drawn.
        count: S, the negatives per user.
        by_popularity: weight each item by its number of interactions (in a temporal split, of
            those to train on); otherwise all weights are 1.
        seed: seeds the draws.

    Returns:
        [U, S] distinct item numbers for each user; zeros where fewer than S items are left.
    """
    if not by_popularity:
        weights = np.ones(sequences.num_items)
    elif sequences.temporal is None:
        counts = np.bincount(sequences.items, minlength=sequences.num_items + 1)[1:]
        weights = counts.astype(np.float64)
    else:
        weights = training_counts(sequences).astype(np.float64)
    base = sequences.num_items + 1
    known = sorted_distinct(sequences.user_item_pairs())
    generator, draw = np.random.default_rng(seed), _WeightedDraw(weights)
    left = sequences.num_items - np.bincount(known // base, minlength=sequences.num_users)
    negatives = np.zeros((sequences.num_users, count), np.int32)
    filled = np.where(left < count, count, 0)
    for _ in range(_ROUNDS):
        unfilled = np.flatnonzero(filled < count)
        for begin in range(0, len(unfilled), _BLOCK_USERS):
            users = unfilled[begin : begin + _BLOCK_USERS]
            drawn = draw(generator.random((len(users), 2 * count)))
            first, last = np.searchsorted(known, [users[0] * base, (users[-1] + 1) * base])
            row, kept = np.nonzero(negatives[users])
            earlier = users[row] * base + negatives[users[row], kept]
            new = _new_items(users, drawn, np.concatenate([known[first:last], earlier]), base)
            column_of = filled[users, None] + new.cumsum(1) - 1
            row, column = np.nonzero(new & (column_of < count))
            negatives[users[row], column_of[row, column]] = drawn[row, column]
            filled[users] = np.minimum(filled[users] + new.sum(1), count)
    # The next item depends on the items left, not on earlier draws that were rejected. Users who
    # already have nearly all likely items get the rest by an exact draw.
    for user in np.flatnonzero(filled < count).tolist():
        own = np.concatenate([sequences[user], negatives[user, : filled[user]]])
        left = np.delete(np.arange(1, sequences.num_items + 1), own - 1)
        negatives[user, filled[user] :] = _draw_exactly(
            left, weights[left - 1], count - filled[user], generator
        )
    return negatives


class _WeightedDraw:
    """Maps numbers in [0, 1) to items in proportion to weights.

    A table of equal cells gives the first item of each cell. The search rarely needs more than one
    step from there, and takes a quarter of the time of a binary search.
    """

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        self._cumulative = weights.cumsum() / weights.sum()
        self._cells = 1 << (4 * len(weights)).bit_length()  # products with it are exact
        edges = np.arange(self._cells) / self._cells
        self._first = np.searchsorted(self._cumulative, edges, "right").astype(np.int32)

    def __call__(self, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
        index = self._first[(uniform * self._cells).astype(np.int64)]
        behind = self._cumulative[index] <= uniform
        while behind.any():
            index[behind] += 1
            behind[behind] = self._cumulative[index[behind]] <= uniform[behind]
        return index + 1


def _draw_exactly(
    items: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    count: int,
    generator: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Draws distinct items by a random permutation of all of them.

    Each item's clock rings after an exponential time with rate `weights`; items are taken in the
    order of their clocks, those of weight 0 last. Source: Efraimidis and Spirakis 2006.
    """
    times = generator.standard_exponential(len(items))
    times = np.where(weights > 0, times / np.maximum(weights, 1), times + _AFTER_ALL)
    return items[np.argpartition(times, count - 1)[:count]]


def _new_items(
    users: npt.NDArray[np.int64],
    drawn: npt.NDArray[np.int32],
    known: npt.NDArray[np.int64],
    base: int,
) -> npt.NDArray[np.bool_]:
    """Marks the first occurrence of each item in a row, unless the user already has it.

    Args:
        users: [U] ascending.
        drawn: [U, S] items drawn for each user.
        known: user * base + item of each known pair, without repetitions.
        base: number above every item number.
    """
    # Sorting pair and column as one number takes a tenth of the time of `argsort`.
    bits = drawn.shape[1].bit_length()
    keys = (users[:, None] * base + drawn) << bits | np.arange(1, drawn.shape[1] + 1)
    keys = np.sort(np.concatenate([known << bits, keys.ravel()]))
    repeated = keys[1:][keys[1:] >> bits == keys[:-1] >> bits]
    is_new = np.ones(drawn.shape, np.bool_)
    row = np.searchsorted(users, (repeated >> bits) // base)
    is_new[row, (repeated & ((1 << bits) - 1)) - 1] = False
    return is_new
