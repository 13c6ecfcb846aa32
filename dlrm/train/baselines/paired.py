# SPDX-License-Identifier: Apache-2.0
"""Computes how far one click model is ahead of another on the same rows."""

import math

import numpy as np
import numpy.typing as npt

from recsys.models.logistic.regression import Floats, log_losses
from recsys.train.measure.verdict import Lead

_NORMAL_95 = 1.959964
AUC, LOG_LOSS = "auc", "log_loss"


def leads_over(
    baseline: str, logits: Floats, model: Floats, labels: npt.NDArray[np.bool_]
) -> list[Lead]:
    """Compares AUC and log loss of a model with those of a baseline.

    The interval of the AUC is that of DeLong, DeLong and Clarke-Pearson 1988 (Comparing the areas
    under two or more correlated receiver operating characteristic curves). That of the log loss is
    the interval of a mean of paired differences. Both cover the chance in the choice of the rows.

    Args:
        baseline: name of the baseline.
        logits: [B] float64 logits of the baseline.
        model: [B] float64 logits of the model.
        labels: [B] bool, of both classes.
    """
    clicked, others = (
        one - other
        for one, other in zip(_ranks(model, labels), _ranks(logits, labels), strict=True)
    )
    by_auc = float(clicked.mean())
    error = math.sqrt(_variance_of_mean(clicked) + _variance_of_mean(others))
    losses = log_losses(model, labels) - log_losses(logits, labels)
    by_loss, error_of_loss = float(losses.mean()), math.sqrt(_variance_of_mean(losses))
    return [
        _lead(AUC, baseline, by_auc, error),
        _lead(LOG_LOSS, baseline, by_loss, error_of_loss, less_is_better=True),
    ]


def _lead(
    metric: str, baseline: str, value: float, error: float, *, less_is_better: bool = False
) -> Lead:
    half = _NORMAL_95 * error
    return Lead(metric, baseline, value, value - half, value + half, less_is_better)


def _ranks(scores: Floats, labels: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Returns the share of the other class that each row ranks correctly against; ties count half.

    Returns:
        (shares of the clicked rows, shares of the others); the mean of each is the AUC.
    """
    clicked, others = scores[labels], scores[~labels]
    above = _shares_below(np.sort(others), clicked)
    return above, 1 - _shares_below(np.sort(clicked), others)


def _shares_below(ordered: Floats, scores: Floats) -> Floats:
    below, with_ties = (np.searchsorted(ordered, scores, side=s) for s in ("left", "right"))
    shares: Floats = (below + with_ties) / (2 * len(ordered))
    return shares


def _variance_of_mean(values: Floats) -> float:
    """Estimates the variance of the mean of independent values; infinite for a single value."""
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else math.inf
