# SPDX-License-Identifier: Apache-2.0
"""Metrics of click predictions, computed exactly in int64 and float64."""

import dataclasses

import torch
from torch import Tensor


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Computes the exact area under the ROC curve.

    It is P(score of a clicked sample > score of another sample); ties count half.

    Args:
        scores: [B] floating point; any score that rises with the prediction. Prefer logits, which
            do not saturate.
        labels: [B] bool.

    Returns:
        The area in [0, 1]; NaN if one class is missing or a score is NaN.
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
class GroupAuc:
    """AUC within groups of rows, such as those of each user.

    Attributes:
        auc: mean AUC of the groups, weighted by their rows; NaN if no group counts.
        num_groups: number of groups that count: those with both clicked and other rows.
        num_rows: rows of these groups.
        num_left_out: rows without a group.
    """

    auc: float
    num_groups: int
    num_rows: int
    num_left_out: int


def group_auc(scores: Tensor, labels: Tensor, groups: Tensor) -> GroupAuc:
    """Computes the AUC within each group, known as GAUC.

    Source: Zhu et al. 2017 (Optimized Cost per Click in Taobao, KDD), section 4.1.

    Args:
        scores: [B] floating point; ties count half.
        labels: [B] bool.
        groups: [B] integers, the group of each row; negative for rows without a group.
    """
    belongs = groups >= 0
    num_left_out = len(groups) - int(belongs.sum())
    scores, labels, groups = scores[belongs], labels[belongs], groups[belongs]
    by_score = torch.argsort(scores, stable=True)
    order = by_score[torch.argsort(groups[by_score], stable=True)]
    scores, groups = scores[order], groups[order]
    clicked = labels[order].to(torch.int64)
    _, group = torch.unique_consecutive(groups, return_inverse=True)
    is_new = torch.ones_like(labels)
    is_new[1:] = (scores[1:] != scores[:-1]) | (group[1:] != group[:-1])
    tie = is_new.cumsum(0) - 1
    num_groups, num_ties = (int(n[-1]) + 1 if len(n) else 0 for n in (group, tie))

    def sums(values: Tensor, index: Tensor, size: int) -> Tensor:
        return values.new_zeros(size).index_add_(0, index, values)

    positives, negatives = (sums(n, group, num_groups) for n in (clicked, 1 - clicked))
    # Per distinct score of a group: its rows without a click, and those of lower scores.
    negatives_of_tie = sums(1 - clicked, tie, num_ties)
    group_of_tie = group[is_new]
    first_of_group = negatives.cumsum(0) - negatives
    below = negatives_of_tie.cumsum(0) - negatives_of_tie - first_of_group[group_of_tie]
    half_pairs = sums(
        sums(clicked, tie, num_ties) * (2 * below + negatives_of_tie), group_of_tie, num_groups
    )
    pairs = positives * negatives
    counts = pairs > 0
    rows = (positives + negatives)[counts]
    aucs = half_pairs[counts].double() / (2 * pairs[counts])
    return GroupAuc(
        auc=float((aucs * rows).sum() / rows.sum()) if len(rows) else float("nan"),
        num_groups=len(rows),
        num_rows=int(rows.sum()),
        num_left_out=num_left_out,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ClickMetrics:
    """Quality of click predictions.

    Attributes:
        auc: area under the ROC curve.
        log_loss: mean binary cross-entropy, in nats.
        normalised_entropy: `log_loss` divided by the log loss of always predicting the base rate;
            below 1 is better than knowing nothing. Source: He et al. 2014 (ADKDD), section 3.
        calibration: mean predicted probability divided by the base rate; 1 is calibrated, above 1
            the model predicts too many clicks.
        accuracy: fraction of samples whose prediction is on the right side of 0.5.
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
