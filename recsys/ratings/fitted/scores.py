# SPDX-License-Identifier: Apache-2.0
"""Scores of items, as a dense or sparse matrix."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.ratings.data.interactions import Matrix

_BLOCK = 1 << 22
"""Upper bound on the scores that are searched at once."""


@dataclasses.dataclass(frozen=True, slots=True)
class MatrixScores:
    """Scores of all items for each history of a batch; see `Scorer`.

    Attributes:
        scores: [B, I] float64; a sparse matrix omits zeros and has no negative scores.
    """

    scores: Matrix

    def _entries(self, row: npt.NDArray[np.int64], item: npt.NDArray[np.int64]) -> Any:
        return np.asarray(self.scores[row, item - 1])

    def dense(self) -> Tensor:
        """Returns [B, I] scores of all items."""
        scores = self.scores
        return torch.from_numpy(scores if isinstance(scores, np.ndarray) else scores.toarray())

    def scores_of(self, items: Tensor) -> Tensor:
        """Returns [B, K] float64 scores of given candidates of each history."""
        rows = np.repeat(np.arange(len(items)), items.shape[1])
        found = self._entries(rows, items.numpy().ravel().copy())
        return torch.from_numpy(found.reshape(items.shape))

    def ranks(self, truth: Tensor, seen_row: Tensor, seen_item: Tensor) -> tuple[Tensor, Tensor]:
        """Ranks the true item of each history among all items."""
        of_truth = self._entries(np.arange(len(truth)), truth.numpy().copy())
        with_seen = self._count_at_least(of_truth) - 1
        row, item = seen_row.numpy().copy(), seen_item.numpy().copy()  # SciPy changes their flags
        ahead = row[self._entries(row, item) >= of_truth[row]]
        without = with_seen - np.bincount(ahead, minlength=len(truth))
        return torch.from_numpy(with_seen), torch.from_numpy(without)

    def _count_at_least(self, least: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Counts the scores of each row that are not below a value."""
        counts: npt.NDArray[np.int64]
        if isinstance(self.scores, np.ndarray):
            counts = (self.scores >= least[:, None]).sum(1)
            return counts
        row = np.repeat(np.arange(self.scores.shape[0]), np.diff(self.scores.indptr))
        counts = np.bincount(row[self.scores.data >= least[row]], minlength=len(least))
        return np.where(least > 0, counts, self.scores.shape[1])

    def top(self, count: int, seen_row: Tensor, seen_item: Tensor) -> tuple[Tensor, Tensor]:
        """Finds the best unseen items of each history; ties are ordered by item number."""
        count = min(count, self.scores.shape[1])
        best = np.empty((self.scores.shape[0], count), np.int64)
        of_best = np.empty(best.shape, np.float32)
        is_left_out = seen_item.numpy() > 0
        seen = seen_row.numpy()[is_left_out], seen_item.numpy()[is_left_out] - 1
        for begin, block in self._blocks():
            inside = (seen[0] >= begin) & (seen[0] < begin + len(block))
            block[seen[0][inside] - begin, seen[1][inside]] = -np.inf
            for row, scores in enumerate(block, begin):
                least = np.partition(scores, -count)[-count]
                candidates = np.flatnonzero(scores >= least)
                order = np.argsort(-scores[candidates], kind="stable")[:count]
                best[row] = candidates[order] + 1
                of_best[row] = scores[candidates[order]]
        return torch.from_numpy(best), torch.from_numpy(of_best)

    def _blocks(self) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
        """Yields (first row, dense copy of some rows)."""
        rows, columns = self.scores.shape
        size = max(_BLOCK // columns, 1)
        for begin in range(0, rows, size):
            block = self.scores[begin : begin + size]
            yield begin, block.copy() if isinstance(block, np.ndarray) else block.toarray()

    def find_nonfinite(self, *, with_items: bool) -> str | None:  # noqa: ARG002  (items are not scored)
        """Names what is NaN or infinite."""
        values = self.scores if isinstance(self.scores, np.ndarray) else self.scores.data
        return None if np.isfinite(values).all() else "a score"
