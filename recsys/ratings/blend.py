# SPDX-License-Identifier: Apache-2.0
"""The sum of two models of ratings, each standardised over the items of a history."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.split import known_items, targets_of, true_items
from recsys.ratings.fitted.scores import MatrixScores
from recsys.ratings.model import RatingsModel
from recsys.ratings.ranking.evaluate import seen_pairs
from recsys.ratings.ranking.metrics import ranking_metrics
from recsys.ratings.scorer import Histories, Scorer

WEIGHTS = tuple(i / 10 for i in range(1, 11))
"""Weights of the second model, of which the validation targets choose one."""

_SCORES = 1 << 24
"""Scores of a model that are held at once."""


def standardised(scorer: Scorer) -> npt.NDArray[np.float64]:
    """Returns [B, I] scores with mean 0 and deviation 1 over the items of each history."""
    scores = scorer.dense().double().cpu().numpy()
    scores = scores - scores.mean(1, keepdims=True)
    deviation = scores.std(1, keepdims=True)
    standard: npt.NDArray[np.float64] = np.divide(
        scores, deviation, out=np.zeros_like(scores), where=deviation > 0
    )
    return standard


@dataclasses.dataclass(frozen=True, slots=True)
class Blend:
    """A sum of two models; see `RatingsModel`.

    Attributes:
        first: a model.
        second: another one of the same items.
        weight: of the second, in [0, 1]; the first has the rest.
    """

    first: RatingsModel
    second: RatingsModel
    weight: float

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        return self.first.num_items

    @property
    def device(self) -> torch.device:
        """The host."""
        return torch.device("cpu")

    @torch.no_grad()
    def scorer(self, histories: Histories) -> MatrixScores:
        """Scores all items after each history."""
        first, second = (standardised(m.scorer(histories)) for m in (self.first, self.second))
        return MatrixScores((1 - self.weight) * first + self.weight * second)


def _batches(sequences: Sequences) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the numbers of the validation targets, some at a time."""
    size = max(min(256, _SCORES // sequences.num_items), 1)
    count = len(targets_of(sequences, "validation"))
    for begin in range(0, count, size):
        yield np.arange(begin, min(begin + size, count))


def validate_blends(
    first: RatingsModel,
    others: Mapping[str, RatingsModel],
    sequences: Sequences,
    weights: Sequence[float] = WEIGHTS,
) -> tuple[float, dict[tuple[str, float], float]]:
    """Computes NDCG@10 of the validation targets for each other model and weight.

    Args:
        first: a model.
        others: models to blend it with, by name.
        sequences: histories of all users.
        weights: weights of the other model.

    Returns:
        (NDCG@10 of the first model alone, (name, weight) -> that of a blend), among all items but
        those of the history.
    """
    truth, keys = true_items(sequences, "validation"), [*itertools.product(others, weights)]
    alone: list[npt.NDArray[np.int64]] = []
    ranks: dict[tuple[str, float], list[npt.NDArray[np.int64]]] = {key: [] for key in keys}
    with torch.inference_mode():
        for rows in _batches(sequences):
            histories = known_items(sequences, "validation", rows)
            true = torch.from_numpy(truth[rows].astype(np.int64))
            seen = seen_pairs(sequences, "validation", rows, torch.device("cpu"))
            of_first = standardised(first.scorer(histories))
            alone.append(MatrixScores(of_first).ranks(true, *seen)[1].numpy())
            for name, other in others.items():
                of_other = standardised(other.scorer(histories))
                for weight in weights:
                    blended = MatrixScores((1 - weight) * of_first + weight * of_other)
                    ranks[name, weight].append(blended.ranks(true, *seen)[1].numpy())
    return _ndcg(alone), {key: _ndcg(parts) for key, parts in ranks.items()}


def _ndcg(ranks: list[npt.NDArray[np.int64]]) -> float:
    return ranking_metrics(np.concatenate(ranks), (10,))["ndcg@10"]
