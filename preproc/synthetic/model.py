# SPDX-License-Identifier: Apache-2.0
"""The planted click model, whose best AUC is known.

logit = bias + w . (numerical effects, id effects, pair effects). Only the most frequent ids of a
column have an effect, and a missing id has no effect, so that all effects can be learned after rare
ids are dropped. A pair effect is the product of two id effects, each of mean zero, so a model
without interactions cannot learn it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.errors import UserError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NUM_HEAD_IDS = 32
"""Number of most frequent ids per column that have effects; each has over 500 of a million rows."""

GROUP_SHARES = (0.40, 0.45, 0.15)
"""Fractions of the variance of the logit: numerical, id and pair effects. On a million rows with a
best AUC of 0.80, a logistic regression then reaches 0.765 and one epoch of a small DLRM 0.791."""

PAIRS = ((13, 16), (5, 22), (16, 22))
"""Columns (of 0..25) whose effects multiply; they have few ids, so every pair is frequent."""

NUMERICAL_CENTRE = np.array(
    [1.2, 2.1, 2.1, 1.7, 7.3, 3.1, 1.8, 2.1, 3.5, 1.0, 1.3, 0.9, 1.7]
)  # Rough mean of ln(max(x, -1) + 2) with missing as 0; it only keeps effects in range.


def zipf_ranks(uniform: Floats, cardinality: int, exponent: float) -> Integers:
    """Maps uniform numbers in [0, 1) to bounded Zipf ranks from 0.

    The inverse distribution function of a bounded Pareto law, rounded down, needs no table, so the
    memory does not grow with the cardinality.
    """
    power = 1.0 - exponent
    top = (cardinality + 1.0) ** power - 1.0
    values = np.power(1.0 + uniform * top, 1.0 / power)
    return np.asarray(np.minimum(values.astype(np.int64) - 1, cardinality - 1))


def zipf_probabilities(num_ranks: int, cardinality: int, exponent: float) -> Floats:
    """Returns the probability of each of the first `num_ranks` ranks of `zipf_ranks`."""
    power = 1.0 - exponent
    edges = np.arange(1, num_ranks + 2, dtype=np.float64) ** power
    return np.diff((edges - 1.0) / ((cardinality + 1.0) ** power - 1.0))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlantedModel:
    """A click model, drawn from a seed.

    Attributes:
        numerical_effects: [13, 2] slope, and effect of the distance from the centre.
        id_effects: [frequent ids + 1] per column; the last is 0, for missing and other ids.
        weights: weights of numerical, id and pair effects; 0 until calibrated.
        bias: added to every logit.
    """

    numerical_effects: Floats
    id_effects: tuple[Floats, ...]
    weights: tuple[float, ...] = (0.0, 0.0, 0.0)
    bias: float = 0.0

    @classmethod
    def draw(
        cls, seed: int, cardinalities: Sequence[int], exponents: Sequence[float]
    ) -> "PlantedModel":
        """Draws the effects from a seed."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))

        ids = []
        for cardinality, exponent in zip(cardinalities, exponents, strict=True):
            heads = min(cardinality, NUM_HEAD_IDS)
            probability = zipf_probabilities(heads, cardinality, exponent)
            probability /= probability.sum()
            effects = rng.standard_normal(heads)
            effects -= probability @ effects
            # Without unit variance, the most frequent id of a skewed column would hide the others.
            effects /= np.sqrt(probability @ effects**2) + 1e-9
            ids.append(np.append(effects * rng.uniform(0.5, 1.5), 0.0))
        numerical = rng.standard_normal((len(NUMERICAL_CENTRE), 2)) * (0.5, 0.16)
        return cls(numerical_effects=numerical, id_effects=tuple(ids))

    def groups(self, numerical: Integers, ranks: Integers) -> Floats:
        """Returns the numerical, id and pair effects, [3, rows].

        Args:
            numerical: [13, rows] raw integers, 0 if missing (as in preset `dlrm`).
            ranks: [26, rows] frequency rank of the category, -1 if missing.
        """
        result = np.zeros((3, numerical.shape[1]))
        centred = np.log(np.maximum(numerical, -1) + 2.0) - NUMERICAL_CENTRE[:, None]
        result[0] = self.numerical_effects[:, 0] @ centred
        result[0] += self.numerical_effects[:, 1] @ np.abs(centred, out=centred)
        own = [
            # -1 turns into a huge unsigned number, and so into the last entry as well.
            effects[np.minimum(column.view(np.uint64), len(effects) - 1).view(np.int64)]
            for column, effects in zip(ranks, self.id_effects, strict=True)
        ]
        for effect in own:
            result[1] += effect
        for a, b in PAIRS:
            result[2] += own[a] * own[b]
        return result

    def probabilities(self, numerical: Integers, ranks: Integers) -> npt.NDArray[np.float32]:
        """Returns the click probabilities [rows]."""
        logits = np.asarray(self.weights) @ self.groups(numerical, ranks) + self.bias
        return sigmoid(logits).astype(np.float32)

    def calibrate(
        self, numerical: Integers, ranks: Integers, click_rate: float, best_auc: float
    ) -> "PlantedModel":
        """Fits weights and bias to a click rate and an AUC on sample rows.

        Raises:
            UserError: no weights reach this AUC.
        """
        groups = self.groups(numerical, ranks)
        shares = np.sqrt(GROUP_SHARES) / (groups.std(axis=1) + 1e-9)
        unit = np.sort(shares @ (groups - groups.mean(axis=1, keepdims=True)))

        def offset(scale: float) -> float:
            return _bisect(
                lambda b: float(sigmoid(scale * unit + b).mean()) - click_rate, -40.0, 40.0
            )

        scale = _bisect(lambda s: _expected_auc(sigmoid(s * unit + offset(s))) - best_auc, 0.0, 8.0)
        reached = _expected_auc(sigmoid(scale * unit + offset(scale)))
        if abs(reached - best_auc) > 1e-3:
            raise UserError(
                f"`best_auc` {best_auc} cannot be reached; this seed allows {reached}",
                setting="best_auc",
            )
        weights = scale * shares
        bias = offset(scale) - float(weights @ groups.mean(axis=1))
        return dataclasses.replace(self, weights=tuple(map(float, weights)), bias=bias)


def sigmoid(logits: Floats) -> Floats:
    """Returns 1 / (1 + exp(-logits)), float64."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def _bisect(function: Any, low: float, high: float) -> float:
    """Returns a zero of an increasing function."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def _expected_auc(ascending: Floats) -> float:
    """Returns the expected AUC of labels drawn from ascending probabilities."""
    negatives = 1.0 - ascending
    below = np.cumsum(negatives) - negatives / 2
    return float((ascending * below).sum() / (ascending.sum() * negatives.sum()))


class BestReachable:
    """AUC and log loss of the true probabilities, which no model can beat.

    The log loss is exact (float64). The AUC is counted in `NUM_BINS` bins of the logit in
    [-12, 12]; pairs within a bin count half, so the error is at most half the fraction of such
    pairs, which is returned as `auc_error_bound` (about 3e-6).
    """

    NUM_BINS = 2**20

    def __init__(self) -> None:
        self._counts = np.zeros((2, self.NUM_BINS), np.int64)
        self._loss = 0.0

    def add(self, probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.bool_]) -> None:
        """Adds the true click probabilities [rows] and labels [rows]."""
        p = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
        logits = np.log(p) - np.log1p(-p)
        bins = ((logits + 12.0) * (self.NUM_BINS / 24.0)).astype(np.int64)
        np.clip(bins, 0, self.NUM_BINS - 1, out=bins)
        for label in (0, 1):
            np.add.at(self._counts[label], bins[labels == label], 1)
        self._loss -= float(np.where(labels, np.log(p), np.log1p(-p)).sum())

    def result(self) -> dict[str, float | int | None]:
        """Returns the metrics by name; the AUC is None unless both labels occur."""
        negatives, positives = self._counts
        num_negatives, num_positives = int(negatives.sum()), int(positives.sum())
        rows, pairs = num_negatives + num_positives, float(num_negatives) * num_positives
        ties = float((negatives * positives).sum())
        below = np.cumsum(negatives) - negatives
        return {
            "rows": rows,
            "clicks": num_positives,
            "click_rate": num_positives / max(rows, 1),
            "auc": (float((positives * below).sum()) + ties / 2) / pairs if pairs else None,
            "auc_error_bound": ties / 2 / pairs if pairs else None,
            "log_loss": self._loss / max(rows, 1),
        }
