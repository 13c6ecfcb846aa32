# SPDX-License-Identifier: Apache-2.0
"""Full softmax in blocks of items, which may be divided among processes.

Each process scores its own items against the hidden vectors of all processes, so neither item
vectors nor their gradients are sent. Source: Shoeybi et al. 2019 (Megatron-LM, arXiv:1909.08053),
section 3.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from bert4rec.nn.row_softmax import empty_gradient, most_logits
from cuda_ext import ops
from recsys.train.processes import Processes


@dataclasses.dataclass(frozen=True, slots=True)
class ItemRange:
    """The items that a process scores.

    Attributes:
        processes: the processes, whose ranges together cover every item once.
        first: number of the range's first item, from 0.
        rows: rows of the range's items in the process's table; its other rows are not items.
        max_logits: bound on the elements of a block of logits; None takes that of the device.
    """

    processes: Processes
    first: int
    rows: slice
    max_logits: int | None = None


def parallel_cross_entropy(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    labels: Tensor,
    items: ItemRange,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns the mean cross entropy over all items; every process must call it.

    Backward is collective too. The gradients of `table` and `bias` are summed over the losses of
    all processes; that of `bias` is zero except at this process's items.

    Args:
        hidden: [M, D] output of the network at this process's targets; M may be 0.
        table: [r, D] rows of this process.
        bias: [I] biases of all items.
        labels: [M] int64 item of each target, from 0.
        items: the items that this process scores.
        weights: [M] float32 weights of this process's targets, with a sum of 1; None weighs all
            equally.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    loss: Tensor = _ParallelCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, table, bias, labels, weights, items
    )
    return loss


class _ParallelCrossEntropy(torch.autograd.Function):
    """Cross entropy in two passes over blocks of items: normaliser, then gradients.

    The logits are computed twice, so that each block of the table's gradient is written once. No
    shape depends on the labels, so the host never waits for a GPU.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        items: ItemRange,
    ) -> Tensor:
        processes, vectors = items.processes, table[items.rows]
        counts = processes.gather_values(hidden.shape[0])
        every_hidden, every_label = processes.gather(hidden), processes.gather(labels)
        own_bias = bias[items.first : items.first + vectors.shape[0]]
        exact = torch.promote_types(hidden.dtype, torch.float32)
        normaliser = every_hidden.new_full((sum(counts),), -math.inf, dtype=exact)
        true = torch.zeros_like(normaliser)
        for block in _blocks(vectors, sum(counts), items.max_logits):
            logits = _logits(every_hidden, vectors[block], own_bias[block])
            normaliser = torch.logaddexp(normaliser, logits.logsumexp(1))
        if len(vectors):
            column, is_own = _columns(every_label - items.first, len(vectors))
            of_true = (every_hidden * vectors.index_select(0, column)).sum(1).to(exact)
            true = torch.where(is_own, of_true + own_bias.index_select(0, column), true)
        normaliser = processes.gather(normaliser.unsqueeze(0)).logsumexp(0)
        losses = _own(normaliser - processes.sum(true), counts, processes)
        ctx.save_for_backward(every_hidden, table, bias, every_label, normaliser, weights)
        ctx.items, ctx.counts = items, counts
        if weights is not None:
            return (losses * weights).sum()
        return losses.sum() / max(hidden.shape[0], 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        hidden, table, bias, labels, normaliser, weights = ctx.saved_tensors
        items, counts = ctx.items, ctx.counts
        processes, vectors = items.processes, table[items.rows]
        own_bias = bias[items.first : items.first + vectors.shape[0]]
        count = counts[processes.rank]
        if weights is None:
            scales = normaliser.new_ones(count) * (gradient / max(count, 1))
        else:
            scales = weights.to(normaliser.dtype) * gradient
        scales = processes.gather(scales).unsqueeze(1)
        to_hidden = torch.zeros_like(hidden, dtype=normaliser.dtype)
        to_table, to_bias = empty_gradient(table, items.rows, table.dtype), torch.zeros_like(bias)
        to_vectors, to_own_bias = to_table[items.rows], to_bias[items.first :]
        target = torch.arange(len(labels), device=labels.device)
        for block in _blocks(vectors, len(labels), items.max_logits):
            logits = _logits(hidden, vectors[block], own_bias[block])
            to_logits = torch.exp(logits - normaliser.unsqueeze(1))
            column, is_in_block = _columns(labels - items.first - block.start, logits.shape[1])
            to_logits[target, column] -= is_in_block.to(to_logits.dtype)
            to_logits = to_logits.mul_(scales).to(hidden.dtype)
            to_hidden += ops.product(to_logits, vectors[block].to(hidden.dtype))
            to_vectors[block] = ops.transposed_product(to_logits, hidden)
            to_own_bias[block] = to_logits.sum(0)
        own = _own(processes.sum(to_hidden), counts, processes)
        return own.to(hidden.dtype), to_table, to_bias, None, None, None


def _own(joined: Tensor, counts: list[int], processes: Processes) -> Tensor:
    """Returns this process's rows of a gathered tensor."""
    before = sum(counts[: processes.rank])
    return joined[before : before + counts[processes.rank]]


def _blocks(vectors: Tensor, targets: int, max_logits: int | None) -> list[slice]:
    max_logits = max_logits or most_logits(vectors.device)
    size, count = max(max_logits // max(targets, 1), 1), vectors.shape[0]
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _columns(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns labels clamped to columns of `count` items, and which labels are among them."""
    return labels.clamp(0, count - 1), (labels >= 0) & (labels < count)


def _logits(hidden: Tensor, vectors: Tensor, bias: Tensor) -> Tensor:
    logits = ops.product(hidden, vectors.to(hidden.dtype).t())
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).add_(bias)
