# SPDX-License-Identifier: Apache-2.0
"""Logistic regression on one-hot ids and binned numbers."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from recsys.data.click_columns import ClickColumns
from recsys.models.logistic.one_hot import Matrix, OneHot
from recsys.models.logistic.rows import SplitRows

Floats = npt.NDArray[np.float64]

_PENALTIES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
"""Strengths of L2, tried from the strongest on until held-out rows lose by a weaker one."""
_CHOICE_ROWS = 1 << 18
"""Rows on which a penalty is tried. It acts as a prior, so it also holds for more rows."""
_STEPS, _CONJUGATE_STEPS = 30, 50
_TOLERANCE = 1e-6
"""The optimizer stops when a step lowers the mean loss by less than this."""
_RESIDUAL = 0.1
_LEAST_SHARE, _LEAST_SIZE = 1e-4, 1e-6
_LEAST_CURVATURE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class LogisticRegression:
    """A fitted model.

    Attributes:
        one_hot: columns of a row.
        weights: weight of each column.
        intercept: logit of a row without any of the columns.
        penalty: chosen strength of L2.
    """

    one_hot: OneHot
    weights: Floats
    intercept: float
    penalty: float

    @classmethod
    def fit(
        cls, rows: SplitRows, held_out: SplitRows, cardinalities: Sequence[int], *, refit: bool
    ) -> "LogisticRegression":
        """Fits weights; the loss on held-out rows chooses the penalty.

        Args:
            rows: training rows.
            held_out: rows on which the penalty is chosen.
            cardinalities: cardinalities of the categorical features, lists last.
            refit: once the penalty is chosen, train on the held-out rows as well.
        """
        one_hot = OneHot.fit(rows, cardinalities)
        labels, matrix = rows.labels, one_hot.matrix(rows.blocks)
        every = -(-len(labels) // _CHOICE_ROWS)
        some, some_labels = (matrix, labels) if every == 1 else (matrix[::every], labels[::every])
        held_matrix, held_labels = one_hot.matrix(held_out.blocks), held_out.labels
        best, penalty, found = np.inf, _PENALTIES[0], np.zeros(one_hot.width + 1)
        weights = found
        for each in _PENALTIES:
            weights = minimize(some, some_labels, each, weights)
            loss = log_losses(held_matrix @ weights[:-1] + weights[-1], held_labels).mean()
            if loss >= best:
                break
            best, penalty, found = loss, each, weights
        if refit:
            rows = rows + held_out
            one_hot = OneHot.fit(rows, cardinalities)
            labels, matrix = rows.labels, one_hot.matrix(rows.blocks)
            found = np.zeros(one_hot.width + 1)
        if refit or every > 1:
            found = minimize(matrix, labels, penalty, found)
        return cls(one_hot, found[:-1], float(found[-1]), penalty)

    def logits(self, block: ClickColumns) -> Floats:
        """Returns [B] float64 logits of rows."""
        logits: Floats = self.one_hot.matrix([block]) @ self.weights + self.intercept
        return logits

    def weights_of_bins(self) -> list[Floats]:
        """Returns the [bins] weights of each number; a number has one bin more than edges."""
        ends = np.cumsum([len(edges) + 1 for edges in self.one_hot.edges])
        return [
            self.weights[end - len(edges) - 1 : end]
            for edges, end in zip(self.one_hot.edges, ends, strict=True)
        ]

    def weights_of_ids(self) -> list[Floats]:
        """Returns the [cardinality] weights of each categorical feature, lists last."""
        return [self.weights[columns] for columns in self.one_hot.columns]


def log_losses(logits: Floats, labels: npt.NDArray[np.bool_]) -> Floats:
    """Returns [B] binary cross-entropy of each row, in nats."""
    return np.logaddexp(0, np.where(labels, -logits, logits))


def minimize(
    matrix: Matrix, labels: npt.NDArray[np.bool_], penalty: float, start: Floats
) -> Floats:
    """Minimizes the sum of log losses plus half the penalty times the squared weights.

    This is a truncated Newton method, like LIBLINEAR's: conjugate gradients, scaled by each
    weight's own curvature, find each step. Source: Lin, Weng and Keerthi 2008 (Trust region Newton
    method for logistic regression). SciPy's methods sum vectors with the threads of a BLAS that no
    setting of a run controls, and take ten times as long when another process is busy.

    Args:
        matrix: [B, columns] features.
        labels: [B] bool.
        penalty: strength of L2; the intercept is not penalized.
        start: [columns + 1] first weights, the intercept last.

    Returns:
        [columns + 1] weights, the intercept last.
    """
    columns, rate = matrix.T, labels.mean()
    squares = np.bincount(matrix.indices, matrix.data**2, matrix.shape[1])
    penalties = np.append(np.full(matrix.shape[1], penalty), 0)

    diagonal = np.append(squares, len(labels)) * rate * (1 - rate) + penalties + _LEAST_CURVATURE

    def logits_of(weights: Floats) -> Floats:
        logits: Floats = matrix @ weights[:-1] + weights[-1]
        return logits

    def sums(of_rows: Floats) -> Floats:
        return np.append(columns @ of_rows, of_rows.sum())

    def loss(logits: Floats, weights: Floats) -> float:
        return float(log_losses(logits, labels).sum() + 0.5 * _dot(penalties * weights, weights))

    weights, logits = start, logits_of(start)
    now = loss(logits, weights)
    for _ in range(_STEPS):
        predicted = (1 + np.tanh(logits / 2)) / 2  # scipy.special takes 0.1 s to import
        gradient = sums(predicted - labels) + penalties * weights
        bend = predicted * (1 - predicted)

        def curve(step: Floats, bend: Floats = bend) -> Floats:
            return sums(bend * logits_of(step)) + penalties * step

        step = _conjugate_gradients(curve, gradient, diagonal)
        slope, moved, size = _dot(gradient, step), logits_of(step), 1.0
        while (then := loss(logits + size * moved, weights + size * step)) > now + (
            _LEAST_SHARE * size * slope
        ) and size > _LEAST_SIZE:
            size /= 2
        weights, logits = weights + size * step, logits + size * moved
        if now - then < _TOLERANCE * len(labels):
            break
        now = then
    return weights


def _conjugate_gradients(
    curve: Callable[[Floats], Floats], gradient: Floats, diagonal: Floats
) -> Floats:
    """Returns approximately the step to the minimum of a quadratic form."""
    step, rest = np.zeros_like(gradient), -gradient
    scaled = rest / diagonal
    direction, squared = scaled, _dot(rest, scaled)
    enough = _RESIDUAL**2 * squared
    for _ in range(_CONJUGATE_STEPS):
        if squared <= enough:
            break
        curved = curve(direction)
        length = squared / _dot(direction, curved)
        step = step + length * direction
        rest = rest - length * curved
        scaled = rest / diagonal
        before, squared = squared, _dot(rest, scaled)
        direction = scaled + squared / before * direction
    return step


def _dot(one: Floats, other: Floats) -> float:
    return float((one * other).sum())
