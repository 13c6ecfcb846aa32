# SPDX-License-Identifier: Apache-2.0
"""Cross entropy over all items in one pass over blocks of targets.

A block's logits are turned into their gradient in place, in the cache, and multiplied immediately.
So no [M, I] matrix is written to memory, read back or computed twice.
"""

from typing import Any

import torch
from torch import Tensor

from cuda_ext import ops

_MAX_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Logits kept at a time: 64 MiB of float32. On a GPU 1 GiB: small blocks would read and write the
item table too often."""

_CACHED_LOGITS = 1 << 18
"""Logits of a block on a CPU, 1 MiB of float32: they stay in the cache between the passes."""

_FEWEST_ROWS = 32
"""Fewest rows of a block: with fewer, the products would read the item vectors too often."""


def rows_per_block(targets: int, items: int, max_logits: int, device: torch.device) -> int:
    """Chooses the targets per block; 0 if a block would exceed `max_logits`.

    Args:
        targets: M.
        items: I.
        max_logits: bound on the elements of a block of logits.
        device: a GPU takes the largest block, a CPU one that fits its cache.
    """
    logits = _CACHED_LOGITS if device.type == "cpu" else max_logits
    rows = min(logits, max_logits) // items
    if device.type == "cpu":
        rows = 1 << max(rows, 1).bit_length() - 1  # products are fast for powers of two
    rows = min(targets, max(rows, _FEWEST_ROWS))
    return rows if rows * items <= max_logits else 0


def most_logits(device: torch.device) -> int:
    """Returns the most logits kept at a time."""
    return _MAX_LOGITS.get(device.type, _MAX_LOGITS["cpu"])


def empty_gradient(table: Tensor, items: slice, dtype: torch.dtype) -> Tensor:
    """Allocates a table's gradient, unwritten at its items and zero elsewhere."""
    gradient = torch.empty_like(table, dtype=dtype)
    gradient[: items.start].zero_()
    gradient[items.stop :].zero_()
    return gradient


class RowBlockedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of linear logits; backward may be called once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        items: slice,
        rows: int,
        loss_scale: float,
    ) -> Tensor:
        """Computes the loss and, if an input requires one, the gradients.

        Args:
            ctx: keeps the gradients.
            hidden: [M, D] output of the network at the targets, M > 0.
            table: [R, D] table with the vectors of the items.
            bias: [I] biases of the items.
            labels: [M] int64 item of each target, from 0.
            weights: [M] float32 weights of the targets, with a sum of 1; None weighs all equally.
            items: rows of the items in the table, I of them.
            rows: targets of a block.
            loss_scale: factor of the stored gradients; the gradient that backward receives must
                contain it too.
        """
        kind = hidden.device.type
        dtype = hidden.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            needed = any(ctx.needs_input_grad), ctx.needs_input_grad[1]
            sums = _Sums(hidden.to(dtype), table.to(dtype), bias, items, loss_scale, *needed)
            for start in range(0, hidden.shape[0], rows):
                sums.add(slice(start, start + rows), labels, weights)
        ctx.gradients = (sums.to_hidden, sums.to_table, sums.to_bias)
        ctx.loss_scale, ctx.dtypes = loss_scale, (hidden.dtype, table.dtype, bias.dtype)
        return sums.loss / hidden.shape[0] if weights is None else sums.loss

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None, None]:
        """Scales the gradients in place, so it can be called only once."""
        gradients, ctx.gradients = ctx.gradients, None
        gradient = gradient / ctx.loss_scale
        to_hidden, to_table, to_bias = (
            None if of_input is None else of_input.mul_(gradient).to(dtype)
            for of_input, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return to_hidden, to_table, to_bias, None, None, None, None, None


class _Sums:
    """Sums the loss and the mean loss's gradients over blocks."""

    def __init__(
        self,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        items: slice,
        loss_scale: float,
        needs_gradients: bool,
        trains_table: bool,
    ) -> None:
        self._hidden, self._vectors, self._bias = hidden, table[items], bias
        self._items = items
        self._loss_scale = loss_scale
        exact = torch.promote_types(hidden.dtype, torch.float32)
        self.loss = hidden.new_zeros((), dtype=exact)
        self.to_hidden = torch.empty_like(hidden) if needs_gradients else None
        self.to_table = empty_gradient(table, items, exact) if trains_table else None
        self.to_bias = torch.zeros_like(bias) if needs_gradients else None

    def add(self, rows: slice, labels: Tensor, weights: Tensor | None) -> None:
        """Adds the targets of a slice."""
        hidden, labels = self._hidden[rows], labels[rows].unsqueeze(1)
        # The softmax is computed in float32 at least, even if the products are in half precision.
        logits = ops.product(hidden, self._vectors.t()).to(self.loss.dtype)
        logits += self._bias
        true = logits.gather(1, labels)
        top = logits.amax(1, keepdim=True)
        exponentials = logits.sub_(top).exp_()
        total = exponentials.sum(1, keepdim=True)
        losses, scale = total.log() + top - true, self._loss_scale
        if weights is None:
            count = self._hidden.shape[0]
            of_total, of_true = scale / (total * count), total.new_full((), -scale / count)
        else:
            share = weights[rows].unsqueeze(1)
            losses = losses * share
            of_total, of_true = scale * share / total, (-scale * share).to(total.dtype)
        self.loss += losses.sum()
        if self.to_hidden is None or self.to_bias is None:
            return
        to_logits = exponentials.mul_(of_total)
        to_logits.scatter_add_(1, labels, of_true.expand_as(true))
        self.to_bias += to_logits.sum(0)
        to_logits = to_logits.to(hidden.dtype)
        ops.product(to_logits, self._vectors, out=self.to_hidden[rows])
        if self.to_table is None:
            return
        to_vectors = self.to_table[self._items]
        if to_vectors.dtype != hidden.dtype:
            of_block = to_logits.t() @ hidden
            to_vectors.add_(of_block) if rows.start else to_vectors.copy_(of_block)
        elif rows.start:
            ops.add_transposed_product(to_vectors, to_logits, hidden)
        else:
            torch.mm(to_logits.t(), hidden, out=to_vectors)  # was not written yet
