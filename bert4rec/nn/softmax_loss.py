# SPDX-License-Identifier: Apache-2.0
"""Losses over all items or sampled ones; labels count from 0."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bert4rec.nn.row_softmax import (
    RowBlockedCrossEntropy,
    empty_gradient,
    item_rows,
    rows_per_block,
)
from cuda_ext import ops

_MAX_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Logits kept at a time: 64 MiB of float32. On a GPU 1 GiB: small blocks would read and write the
item table too often."""


def most_logits(device: torch.device) -> int:
    """Returns the most logits kept at a time."""
    return _MAX_LOGITS.get(device.type, _MAX_LOGITS["cpu"])


def softmax_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    max_logits: int | None = None,
    loss_scale: float = 1.0,
    edge_rows: int = 0,
) -> Tensor:
    """Cross entropy of linear logits over all items, in bounded memory.

    At most `max_logits` logits are in memory. The gradient of a whole table is one buffer; that of
    a slice of it would be copied into a second one, filled with zeros.

    Args:
        hidden: [M, D] output of the network at the targets.
        weight: [R, D] table with the vectors of the items; R = I + 2 * edge_rows.
        bias: [I] biases of the items, or None.
        labels: [M] int64 item of each target, from 0.
        max_logits: bound on the elements of a block of logits; None takes that of the device.
        loss_scale: factor that backward will bring; half-precision gradients that are computed
            before it have it already, or they would underflow.
        edge_rows: rows at either end of the table that are no items.

    Returns:
        Mean over the targets, a float32 scalar (float64 of float64 vectors); 0 without targets.
    """
    if hidden.shape[0] == 0:
        unused = weight[:0].sum() + (0 if bias is None else bias[:0].sum())
        return (hidden.sum() + unused).to(torch.float32)
    items = weight.shape[0] - 2 * edge_rows
    max_logits = max_logits or most_logits(hidden.device)
    rows = rows_per_block(hidden.shape[0], items, max_logits, hidden.device)
    if rows:
        by_rows: Tensor = RowBlockedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, labels, rows, loss_scale, edge_rows
        )
        return by_rows
    block = max(max_logits // hidden.shape[0], 1)
    if torch.is_autocast_enabled(hidden.device.type):
        # Backward computes the logits again, without autocast: they must be the same.
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    loss: Tensor = _BlockedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, labels, block, edge_rows
    )
    return loss


class _BlockedCrossEntropy(torch.autograd.Function):
    """Cross entropy in two passes over blocks of items: normaliser, then gradients.

    The logits are computed twice, so that each block of the weight's gradient is written once.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        block: int,
        edge_rows: int,
    ) -> Tensor:
        table, weight = weight, item_rows(weight, edge_rows)
        exact = torch.promote_types(hidden.dtype, torch.float32)
        normaliser = hidden.new_full((hidden.shape[0],), -math.inf, dtype=exact)
        for start in range(0, weight.shape[0], block):
            logits = _logits(hidden, weight, bias, slice(start, start + block))
            normaliser = torch.logaddexp(normaliser, logits.logsumexp(1))
        true = (hidden * weight.index_select(0, labels)).sum(1).to(exact)
        if bias is not None:
            true = true + bias.index_select(0, labels)
        ctx.save_for_backward(hidden, table, bias, labels, normaliser)  # type: ignore[arg-type]
        ctx.block, ctx.edge_rows = block, edge_rows  # type: ignore[attr-defined]
        return (normaliser - true).mean()

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, None, None, None]:
        hidden, table, bias, labels, normaliser = ctx.saved_tensors  # type: ignore[attr-defined]
        block, edge_rows = ctx.block, ctx.edge_rows  # type: ignore[attr-defined]
        weight = item_rows(table, edge_rows)
        scale = gradient / hidden.shape[0]
        to_hidden = torch.zeros_like(hidden, dtype=normaliser.dtype)
        to_table = empty_gradient(table, edge_rows, table.dtype)
        to_weight = item_rows(to_table, edge_rows)
        to_bias = None if bias is None else torch.empty_like(bias)
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        for start in range(0, weight.shape[0], block):
            items = slice(start, start + block)
            probabilities = torch.exp(
                _logits(hidden, weight, bias, items) - normaliser.unsqueeze(1)
            )
            size = probabilities.shape[1]
            in_block = (labels >= start) & (labels < start + size)
            columns = (labels - start).clamp(0, size - 1)
            probabilities[rows, columns] -= in_block.to(probabilities.dtype)
            to_logits = probabilities.mul_(scale).to(hidden.dtype)
            to_hidden += ops.product(to_logits, weight[items].to(hidden.dtype))
            to_weight[items] = ops.transposed_product(to_logits, hidden)
            if to_bias is not None:
                to_bias[items] = to_logits.sum(0)
        return to_hidden.to(hidden.dtype), to_table, to_bias, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, items: slice) -> Tensor:
    logits = ops.product(hidden, weight[items].to(hidden.dtype).t())
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if bias is None else logits.add_(bias[items])


def sampled_softmax(
    true_logits: Tensor,
    negative_logits: Tensor,
    labels: Tensor,
    negatives: Tensor,
    log_q_true: Tensor | None = None,
    log_q_negative: Tensor | None = None,
) -> Tensor:
    """Cross entropy among the true item and negatives that all targets share.

    Args:
        true_logits: [M] logit of each target's true item.
        negative_logits: [M, S] logits of the negatives.
        labels: [M] int64 true items.
        negatives: [S] int64 items; one that equals a target's true item does not count there.
        log_q_true: [M] log probability that the sampler draws the true item; with both given,
            logits are corrected so that the loss approaches the full softmax.
        log_q_negative: [S] log probability that the sampler draws each negative.

    Returns:
        Mean over the targets, float32. Source: Bengio and Senecal 2008; Yi et al. 2019.
    """
    true_logits = true_logits.to(torch.float32)
    negative_logits = negative_logits.to(torch.float32)
    if log_q_true is not None and log_q_negative is not None:
        true_logits = true_logits - log_q_true
        negative_logits = negative_logits - log_q_negative
    collides = labels.unsqueeze(1) == negatives
    negative_logits = negative_logits.masked_fill(collides, -math.inf)
    logits = torch.cat([true_logits.unsqueeze(1), negative_logits], dim=1)
    return (logits.logsumexp(1) - true_logits).mean()


def generalised_bce(
    true_logits: Tensor,
    negative_logits: Tensor,
    labels: Tensor,
    negatives: Tensor,
    num_items: int,
    calibration: float = 0.75,
) -> Tensor:
    """gBCE: binary cross entropy over sampled negatives, calibrated for the sampling.

    Args:
        true_logits: [M] logit of each target's true item.
        negative_logits: [M, S] logits of the negatives.
        labels: [M] int64 true items.
        negatives: [S] int64 items, drawn uniformly.
        num_items: I.
        calibration: t in [0, 1]; 0 is plain binary cross entropy.

    Returns:
        Mean over the targets, float32. Source: Petrov and Macdonald 2023 (arXiv:2308.07192).
    """
    rate = negatives.shape[0] / (num_items - 1)
    beta = rate * (calibration * (1 - 1 / rate) + 1 / rate)
    # log sigmoid(s)^beta is beta * log sigmoid(s): no transform of the logit is needed.
    positive = -beta * F.logsigmoid(true_logits.to(torch.float32))
    collides = labels.unsqueeze(1) == negatives
    negative = F.softplus(negative_logits.to(torch.float32)).masked_fill(collides, 0.0)
    return (positive + negative.sum(1)).mean()
