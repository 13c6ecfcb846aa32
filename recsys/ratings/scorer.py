# SPDX-License-Identifier: Apache-2.0
"""Scores of all items after histories: the interface of every model of ratings."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.train.memory import to_device

Histories = Sequence[npt.NDArray[np.int64]]
"""Item numbers of each user, oldest first."""

LOWEST_SCORE = torch.finfo(torch.float32).min
"""Score that is served where no item is left: JSON has no -inf."""


class Scorer(Protocol):
    """Scores all items for each history of a batch."""

    def scores_of(self, items: Tensor) -> Tensor:
        """Scores given candidates of each history.

        Args:
            items: [B, K] int64 item numbers, from 1.

        Returns:
            [B, K] float32.
        """

    def ranks(self, truth: Tensor, seen_row: Tensor, seen_item: Tensor) -> tuple[Tensor, Tensor]:
        """Ranks the true item of each history among all items.

        Ties count against the true item, and so does a NaN score.

        Args:
            truth: [B] int64 item numbers, from 1.
            seen_row: [P] int64 history of each seen item.
            seen_item: [P] int64 seen items, distinct within a history and never its true item.

        Returns:
            ([B] int64 rank from 0 among all items, [B] int64 rank without the seen items).
        """

    def top(self, count: int, seen_row: Tensor, seen_item: Tensor) -> tuple[Tensor, Tensor]:
        """Finds the best unseen items of each history.

        Args:
            count: K, items per list.
            seen_row: [P] int64 history of each seen item.
            seen_item: [P] int64 item to leave out of that history's list; 0 leaves none out.

        Returns:
            ([B, K] int64 item numbers, best first, [B, K] float32 scores, -inf where none is left).
        """

    def dense(self) -> Tensor:
        """Returns [B, I] scores of all items; column i is item i + 1."""

    def find_nonfinite(self, *, with_items: bool) -> str | None:
        """Names what is NaN or infinite; None if everything is finite.

        Args:
            with_items: also check what all batches share.
        """


def largest_difference(
    scorer: Scorer, items: Tensor, scores: Tensor, seen_row: Tensor, seen_item: Tensor
) -> float:
    """Compares lists of another implementation with those of a scorer.

    Two items of almost equal score may swap ranks. So this compares the scores at each rank, and
    the scores that each side gives to the other's items.

    Args:
        scorer: scores of the same histories.
        items: [B, K] int64 item numbers, best first, 0 where none is left.
        scores: [B, K] float32; ignored where no item is left.
        seen_row: [P] int64, as for `top`.
        seen_item: [P] int64, as for `top`.

    Returns:
        The largest difference, relative to the true score if that is above 1; NaN if the lists
        differ in length.
    """
    _, best = scorer.top(items.shape[1], seen_row, seen_item)
    items, scores = items.to(best.device), scores.to(best.device)
    filled = (items > 0) & ~scores.isnan()
    if not torch.equal(filled, best.isfinite()):
        return float("nan")
    largest = 0.0
    for true in (best, scorer.scores_of(items.clamp(min=1))):
        difference = (scores - true).abs() / true.abs().clamp(min=1)
        largest = max(largest, float(torch.where(filled, difference, 0).max()))
    return largest


def rank_among(scores: Tensor) -> Tensor:
    """Returns the rank of the first column; ties count as in `Scorer.ranks`.

    Args:
        scores: [B, 1 + S] scores of the true item, then of its negatives.

    Returns:
        [B] int64, from 0.
    """
    return (~(scores[:, 1:] < scores[:, :1])).sum(1)


def history_item_pairs(
    histories: Histories, device: torch.device, chosen: npt.NDArray[np.bool_] | None = None
) -> tuple[Tensor, Tensor]:
    """Lists the items of all histories.

    Args:
        histories: B arrays of item numbers.
        device: device of the returned tensors.
        chosen: [B] bool, the histories to list; None lists all.

    Returns:
        ([P] int64 index of the history, [P] int64 item number).
    """
    if chosen is not None:
        histories = [h if keep else h[:0] for h, keep in zip(histories, chosen, strict=True)]
    lengths = [len(history) for history in histories]
    rows = np.repeat(np.arange(len(histories)), lengths)
    items = np.concatenate([*histories, np.empty(0, np.int64)])
    return to_device(torch.from_numpy(rows), device), to_device(torch.from_numpy(items), device)
