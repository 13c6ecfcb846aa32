# SPDX-License-Identifier: Apache-2.0
"""Weighted sums of models of ratings, each standardised over the items of a history."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.ratings.data.split import known_items, targets_of, true_items
from recsys.ratings.fitted.scores import MatrixScores
from recsys.ratings.model import RatingsModel
from recsys.ratings.ranking.evaluate import seen_pairs
from recsys.ratings.ranking.metrics import GAINS
from recsys.ratings.scorer import Histories, Scorer

Weights = Mapping[str, float]
"""Weights of models by name, which add up to 1."""

_PARTS = 10
"""Weights are multiples of 1 / this number."""
_SCORES = 1 << 24
"""Upper bound on the scores of a model that are held at once."""
_MOST_TARGETS = 5_000
"""Upper bound on the validation targets that choose; more hardly change the choice."""
_K = 10


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
    """A weighted sum of models; see `RatingsModel`.

    Attributes:
        models: models of the same items.
        weights: one weight for each model; they add up to 1.
    """

    models: Sequence[RatingsModel]
    weights: Sequence[float]

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        return self.models[0].num_items

    @property
    def device(self) -> torch.device:
        """The host."""
        return torch.device("cpu")

    @torch.no_grad()
    def scorer(self, histories: Histories) -> MatrixScores:
        """Scores all items after each history."""
        pairs = zip(self.weights, self.models, strict=True)
        first, *others = (weight * standardised(m.scorer(histories)) for weight, m in pairs)
        return MatrixScores(sum(others, first))


def possible_weights(first: str, others: Sequence[str], most: int) -> list[Weights]:
    """Lists sums of a first model and at most `most` others; weights are tenths above 0."""
    found: dict[tuple[tuple[str, float], ...], None] = {}
    for added in itertools.combinations(others, min(most, len(others))):
        for parts in itertools.product(range(_PARTS + 1), repeat=len(added)):
            if (rest := _PARTS - sum(parts)) >= 0:
                named = zip((first, *added), (rest, *parts), strict=True)
                found[tuple((name, n / _PARTS) for name, n in named if n)] = None
    return [dict(key) for key in found]


def gains_of(
    models: Mapping[str, RatingsModel], sequences: Sequences, possible: Sequence[Weights]
) -> npt.NDArray[np.float64]:
    """Computes the NDCG@10 of validation targets for each candidate sum.

    Args:
        models: models of the same items, by name.
        possible: C sums.

    Returns:
        [C, T] float64. Each target is ranked among all items except the rest of its history. Of
        more than 5,000 targets, 5,000 evenly spaced ones are used.

    Raises:
        UserError: there is no validation target.
    """
    truth, count = true_items(sequences, "validation"), len(targets_of(sequences, "validation"))
    if not count:
        raise UserError(
            "no user has a validation target, so the weights cannot be chosen: name `blend_with` "
            "and `weights`",
            settings=("blend_with", "weights"),
        )
    table = np.array([[weights.get(name, 0.0) for name in models] for weights in possible])
    targets = np.linspace(0, count - 1, min(count, _MOST_TARGETS)).astype(np.int64)
    size = max(min(256, _SCORES // sequences.num_items), 1)
    ranks = np.empty((len(possible), len(targets)), np.int64)
    with torch.inference_mode():
        for begin in range(0, len(targets), size):
            rows = targets[begin : begin + size]
            histories = known_items(sequences, "validation", rows)
            seen = [
                pairs.numpy()
                for pairs in seen_pairs(sequences, "validation", rows, torch.device("cpu"))
            ]
            scores = [standardised(model.scorer(histories)) for model in models.values()]
            for row, true in enumerate(truth[rows].tolist()):
                leads = np.stack([of_model[row] - of_model[row, true - 1] for of_model in scores])
                leads[:, [true - 1, *(seen[1][seen[0] == row] - 1)]] = -1
                # An item that is behind the target in every model is behind it in every sum.
                ahead = leads[:, (leads >= 0).any(0)]
                ranks[:, begin + row] = (table @ ahead >= 0).sum(1)
    return np.where(ranks < _K, GAINS["ndcg"](ranks), 0.0)


def most_even(possible: Sequence[Weights], gains: npt.NDArray[np.float64]) -> int:
    """Chooses the most even sum within a standard error of the best.

    On few validation targets, the best sum is best by chance and often favours the model that was
    trained on them the longest. This is the one-standard-error rule of Breiman et al.,
    "Classification and regression trees", 1984, with the most even sum as the simplest.

    Args:
        possible: C sums.
        gains: [C, T] NDCG@10 of the validation targets.

    Returns:
        Index of the sum whose largest weight is the smallest; among equals, of the best one.
    """
    means = gains.mean(1)
    behind = gains[means.argmax()] - gains
    is_near = behind.mean(1) <= behind.std(1) / np.sqrt(gains.shape[1])
    largest = np.array([max(weights.values()) for weights in possible])
    return int(np.lexsort((-means, largest, ~is_near))[0])
