# SPDX-License-Identifier: Apache-2.0
"""Losses over all items or sampled ones; labels count from 0."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bert4rec.nn.parallel_softmax import ItemRange, parallel_cross_entropy
from bert4rec.nn.row_softmax import RowBlockedCrossEntropy, most_logits, rows_per_block
from recsys.train.processes import ALONE


def softmax_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    max_logits: int | None = None,
    loss_scale: float = 1.0,
    edge_rows: int = 0,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns the cross entropy of linear logits over all items, in bounded memory.

    At most `max_logits` logits are in memory. Pass the whole table: the gradient of a slice would
    be copied into a second buffer of the table's size, filled with zeros.

    Args:
        hidden: [M, D] output of the network at the targets.
        weight: [R, D] table with the vectors of the items; R = I + 2 * edge_rows.
        bias: [I] biases of the items.
        labels: [M] int64 item of each target, from 0.
        max_logits: bound on the elements of a block of logits; None takes that of the device.
        loss_scale: factor that the gradient in backward will have. Half-precision gradients that
            are computed earlier are multiplied by it already, so that they do not underflow.
        edge_rows: rows at either end of the table that are not items.
        weights: [M] float32 weights of the targets, with a sum of 1; None weighs all equally.

    Returns:
        Mean over the targets, a float32 scalar (float64 for float64 vectors); 0 without targets.
    """
    if hidden.shape[0] == 0:
        return (hidden.sum() + weight[:0].sum() + bias[:0].sum()).to(torch.float32)
    items = slice(edge_rows, weight.shape[0] - edge_rows)
    max_logits = max_logits or most_logits(hidden.device)
    rows = rows_per_block(hidden.shape[0], len(bias), max_logits, hidden.device)
    if rows:
        by_rows: Tensor = RowBlockedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, labels, weights, items, rows, loss_scale
        )
        return by_rows
    return parallel_cross_entropy(
        hidden, weight, bias, labels, ItemRange(ALONE, 0, items, max_logits), weights
    )


def sampled_softmax(
    true_logits: Tensor,
    negative_logits: Tensor,
    labels: Tensor,
    negatives: Tensor,
    log_expected: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns the cross entropy among the true item and negatives that all targets share.

    Args:
        true_logits: [M] logit of each target's true item.
        negative_logits: [M, S] logits of the negatives.
        labels: [M] int64 true items.
        negatives: [S] int64 items; one that equals a target's true item is ignored there.
        log_expected: logarithm of the expected count of an item among the negatives. It is
            subtracted from their logits, so that the loss approximates the full softmax. The true
            item is always a candidate, so its logit is unchanged.
        weights: [M] float32 weights of the targets, with a sum of 1; None weighs all equally.

    Returns:
        Mean over the targets, float32. Source: Bengio and Senecal 2008; Yi et al. 2019.
    """
    true_logits = true_logits.to(torch.float32)
    negative_logits = negative_logits.to(torch.float32) - log_expected
    collides = labels.unsqueeze(1) == negatives
    negative_logits = negative_logits.masked_fill(collides, -math.inf)
    logits = torch.cat([true_logits.unsqueeze(1), negative_logits], dim=1)
    return _mean(logits.logsumexp(1) - true_logits, weights)


def generalised_bce(
    true_logits: Tensor,
    negative_logits: Tensor,
    labels: Tensor,
    negatives: Tensor,
    num_items: int,
    calibration: float = 0.75,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns gBCE: binary cross entropy over sampled negatives, calibrated for the sampling.

    Args:
        true_logits: [M] logit of each target's true item.
        negative_logits: [M, S] logits of the negatives.
        labels: [M] int64 true items.
        negatives: [S] int64 items, drawn uniformly.
        num_items: I.
        calibration: t in [0, 1]; 0 is plain binary cross entropy.
        weights: [M] float32 weights of the targets, with a sum of 1; None weighs all equally.

    Returns:
        Mean over the targets, float32. Source: Petrov and Macdonald 2023 (arXiv:2308.07192).
    """
    rate = negatives.shape[0] / (num_items - 1)
    beta = rate * (calibration * (1 - 1 / rate) + 1 / rate)
    # log sigmoid(s)^beta is beta * log sigmoid(s), so the logit need not be transformed.
    positive = -beta * F.logsigmoid(true_logits.to(torch.float32))
    collides = labels.unsqueeze(1) == negatives
    negative = F.softplus(negative_logits.to(torch.float32)).masked_fill(collides, 0.0)
    return _mean(positive + negative.sum(1), weights)


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    return losses.mean() if weights is None else (losses * weights).sum()
