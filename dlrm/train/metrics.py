# SPDX-License-Identifier: Apache-2.0
"""Metrics of click predictions, computed exactly in int64 and float64."""

import dataclasses

import torch
from torch import Tensor


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Computes the exact area under the ROC curve.

    That is P(score of a clicked sample > score of another one); ties count half.

    Args:
        scores: [B] floating point, any monotone score; prefer logits, which do not saturate.
        labels: [B] bool.

    Returns:
        The area in [0, 1]; nan if one class is missing or a score is nan.
    """
    if torch.isnan(scores).any():
        return float("nan")
    order = torch.argsort(scores)
    _, inverse = torch.unique_consecutive(scores[order], return_inverse=True)
    sorted_labels = labels[order].to(torch.int64)
    groups = int(inverse[-1]) + 1 if len(inverse) else 0
    # Per distinct score: int64 counts stay exact up to 3e9 pairs of 3e9 (float32 fails at 2**24).
    positives = torch.zeros(groups, dtype=torch.int64, device=scores.device)
    positives.index_add_(0, inverse, sorted_labels)
    negatives = torch.zeros_like(positives).index_add_(0, inverse, 1 - sorted_labels)
    negatives_below = negatives.cumsum(0) - negatives
    total = int(positives.sum()) * int(negatives.sum())
    if total == 0:
        return float("nan")
    half_pairs = int((positives * (2 * negatives_below + negatives)).sum())
    return half_pairs / 2 / total


@dataclasses.dataclass(frozen=True, slots=True)
class ClickMetrics:
    """Quality of click predictions.

    Attributes:
        auc: area under the ROC curve.
        log_loss: mean binary cross-entropy, in nats.
        normalised_entropy: log_loss over that of always predicting the base rate; below 1 is
            better than knowing nothing. Source: He et al. 2014 (ADKDD), section 3.
        calibration: mean predicted probability over the base rate; 1 is calibrated.
        accuracy: fraction of samples with the prediction on the right side of 0.5.
        base_rate: fraction of samples with a click.
        num_rows: number of samples.
    """

    auc: float
    log_loss: float
    normalised_entropy: float
    calibration: float
    accuracy: float
    base_rate: float
    num_rows: int


def click_metrics(logits: Tensor, labels: Tensor) -> ClickMetrics:
    """Computes all metrics of logits [B] (floating point) and labels [B] (bool)."""
    logits64, labels64 = logits.to(torch.float64), labels.to(torch.float64)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits64, labels64)
    rate = labels64.mean()
    entropy = torch.special.entr(rate) + torch.special.entr(1 - rate)
    return ClickMetrics(
        auc=roc_auc(logits, labels),
        log_loss=float(loss),
        normalised_entropy=float(loss / entropy) if entropy else float("nan"),
        calibration=float(torch.sigmoid(logits64).mean() / rate) if rate else float("nan"),
        accuracy=float(((logits > 0) == labels).to(torch.float64).mean()),
        base_rate=float(rate),
        num_rows=labels.numel(),
    )
