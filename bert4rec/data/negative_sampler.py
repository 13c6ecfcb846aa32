# SPDX-License-Identifier: Apache-2.0
"""Draws negatives: per training batch on the device, or per user."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.data.split import training_lengths
from recsys.data.sequences import Sequences
from recsys.errors import UserError


@dataclasses.dataclass(frozen=True, slots=True)
class Negatives:
    """Candidates that are compared with the targets.

    Attributes:
        items: [S] int64, item numbers from 1, with repetitions.
        log_expected: [S] float32, logarithm of each item's expected count among S draws.
    """

    items: Tensor
    log_expected: Tensor


class NegativeSampler:
    """Draws negatives with replacement.

    Args:
        num_items: I.
        count: S.
        popularity: [I] weights of the items; None draws uniformly.
        device: device to draw on.
    """

    def __init__(
        self,
        num_items: int,
        count: int,
        popularity: npt.NDArray[np.float64] | None,
        device: torch.device,
    ) -> None:
        self._num_items = num_items
        self._count = count
        self._device = device
        self._cumulative: Tensor | None = None
        if popularity is not None:
            probabilities = torch.from_numpy(popularity / popularity.sum())
            self._log_expected = torch.log(probabilities * count).to(device, torch.float32)
            self._cumulative = probabilities.cumsum(0).to(device)

    def draw(self, generator: torch.Generator) -> Negatives:
        """Draws the negatives of a batch with a generator on the device."""
        device = self._device
        if self._cumulative is None:
            items = torch.randint(
                1, self._num_items + 1, (self._count,), generator=generator, device=device
            )
            expected = math.log(self._count / self._num_items)
            return Negatives(items, torch.full((self._count,), expected, device=device))
        drawn = torch.rand(self._count, generator=generator, device=device, dtype=torch.float64)
        # The last sum may fall short of one by rounding.
        rows = torch.searchsorted(self._cumulative, drawn).clamp_(max=self._num_items - 1)
        return Negatives(rows + 1, self._log_expected[rows])


def training_popularity(sequences: Sequences) -> npt.NDArray[np.float64]:
    """Counts the occurrences of each item in the training split, plus one.

    The one lets items be drawn that occur only as validation or test targets.

    Returns:
        [I] float64.
    """
    return training_counts(sequences).astype(np.float64) + 1.0


def log_popularity(sequences: Sequences) -> Tensor:
    """Returns [I] float32 logarithms of each item's share of the interactions."""
    counts = torch.from_numpy(training_popularity(sequences))
    return (counts / counts.sum()).log().to(torch.float32)


def training_counts(sequences: Sequences) -> npt.NDArray[np.int64]:
    """Returns [I] occurrences of each item in the training split."""
    known = training_lengths(sequences)
    position = np.arange(len(sequences.items)) - np.repeat(
        sequences.offsets[:-1], sequences.lengths
    )
    items = sequences.items[position < np.repeat(known, sequences.lengths)]
    return np.bincount(items, minlength=sequences.num_items + 1)[1:]


def draw_negatives(
    sequences: Sequences, count: int, *, by_popularity: bool, seed: int
) -> npt.NDArray[np.int32]:
    """Draws negatives for every user, the same ones for validation and test.

    Args:
        sequences: histories of all users; none of a user's own items, targets included, is drawn.
        count: S.
        by_popularity: draw in proportion to the number of interactions (in a temporal split,
            those that are trained on), otherwise uniformly.
        seed: seeds the draws.

    Returns:
        [U, S] item numbers, different ones for each user.

    Raises:
        UserError: a user has so many items that fewer than S are left.
    """
    left = sequences.num_items - int(_distinct_items(sequences).max())
    if left < count:
        raise UserError(
            f"a user has met all but {left} of {sequences.num_items} items, yet "
            f"`num_eval_negatives` asks for {count} others"
        )
    if sequences.temporal is None:
        counts = np.bincount(sequences.items, minlength=sequences.num_items + 1)[1:]
    else:
        counts = training_counts(sequences)
    weights = counts.astype(np.float64) if by_popularity else np.ones(sequences.num_items)
    if by_popularity and np.count_nonzero(weights) < sequences.num_items:
        weights = weights + np.where(weights == 0, 1e-12, 0)  # drawn when nothing else is left
    cumulative = weights.cumsum() / weights.sum()
    generator = np.random.default_rng(seed)
    negatives = np.zeros((sequences.num_users, count), np.int32)
    filled = np.zeros(sequences.num_users, np.int64)
    known = np.unique(sequences.user_item_pairs())
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


def _distinct_items(sequences: Sequences) -> npt.NDArray[np.int64]:
    pairs = np.unique(sequences.user_item_pairs())
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
