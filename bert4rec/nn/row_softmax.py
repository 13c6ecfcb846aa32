# SPDX-License-Identifier: Apache-2.0
"""Cross entropy over all items in one pass over blocks of targets.

A block's logits are turned into their gradient in place, in cache, and multiplied at once: no
matrix of [M, I] is written to memory, read back or computed twice.
"""

import torch
from torch import Tensor

from cuda_ext import ops

_CACHED_LOGITS = 1 << 18
"""Logits of a block on a CPU, 1 MiB of float32: they stay in the cache between the passes."""

_FEWEST_ROWS = 32
"""Rows of a block: with fewer, the products read the items' vectors more often than they pay."""


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
        rows = 1 << max(rows, 1).bit_length() - 1  # a number of rows that products are fast for
    rows = min(targets, max(rows, _FEWEST_ROWS))
    return rows if rows * items <= max_logits else 0


def item_rows(table: Tensor, edge_rows: int) -> Tensor:
    """Returns the rows of a table without `edge_rows` at either end."""
    return table[edge_rows : table.shape[0] - edge_rows]


def empty_gradient(table: Tensor, edge_rows: int, dtype: torch.dtype) -> Tensor:
    """Allocates a table's gradient, zero at its edges and unwritten between."""
    gradient = torch.empty_like(table, dtype=dtype)
    gradient[:edge_rows].zero_()
    gradient[table.shape[0] - edge_rows :].zero_()
    return gradient


class RowBlockedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of linear logits; backward may be called once."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        rows: int,
        loss_scale: float = 1.0,
        edge_rows: int = 0,
    ) -> Tensor:
        """Computes the loss and, if an input requires one, the gradients.

        Args:
            ctx: keeps the gradients.
            hidden: [M, D] output of the network at the targets, M > 0.
            weight: [R, D] table with the vectors of the items; R = I + 2 * edge_rows.
            bias: [I] biases of the items, or None.
            labels: [M] int64 item of each target, from 0.
            rows: targets of a block.
            loss_scale: factor of the gradients until backward, whose gradient has it too.
            edge_rows: rows at either end of the table that are no items.
        """
        kind = hidden.device.type
        dtype = hidden.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        wants_gradients = any(ctx.needs_input_grad)  # type: ignore[attr-defined]
        with torch.autocast(kind, enabled=False):
            sums = _Sums(
                *(hidden.to(dtype), weight.to(dtype), bias),
                edge_rows=edge_rows,
                loss_scale=loss_scale,
                wants_gradients=wants_gradients,
                trains_table=ctx.needs_input_grad[1],  # type: ignore[attr-defined]
            )
            for start in range(0, hidden.shape[0], rows):
                sums.add(slice(start, start + rows), labels)
        if sums.wants_gradients:
            gradients = (sums.to_hidden, sums.to_table, sums.to_bias)
            ctx.gradients = gradients  # type: ignore[attr-defined]
            ctx.loss_scale = loss_scale  # type: ignore[attr-defined]
            ctx.dtypes = (hidden.dtype, weight.dtype)  # type: ignore[attr-defined]
        return sums.loss / hidden.shape[0]

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None, None, None, None]:
        """Scales the gradients in place; a second call is impossible."""
        to_hidden, to_table, to_bias = ctx.gradients  # type: ignore[attr-defined]
        ctx.gradients = None  # type: ignore[attr-defined]
        gradient = gradient / ctx.loss_scale  # type: ignore[attr-defined]
        hidden_dtype, weight_dtype = ctx.dtypes  # type: ignore[attr-defined]
        return (
            to_hidden.mul_(gradient).to(hidden_dtype),
            None if to_table is None else to_table.mul_(gradient).to(weight_dtype),
            None if to_bias is None else to_bias.mul_(gradient),
            None,
            None,
            None,
            None,
        )


class _Sums:
    """Sums the loss and the mean loss's gradients over blocks."""

    def __init__(
        self,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor | None,
        *,
        edge_rows: int,
        loss_scale: float,
        wants_gradients: bool,
        trains_table: bool,
    ) -> None:
        self._hidden = hidden
        self._edge_rows = edge_rows
        self._weight = item_rows(table, edge_rows)
        self._bias = bias
        self._loss_scale = loss_scale
        self.wants_gradients = wants_gradients
        exact = torch.promote_types(hidden.dtype, torch.float32)
        self.loss = hidden.new_zeros((), dtype=exact)
        if wants_gradients:
            self.to_hidden = torch.empty_like(hidden)
            self.to_table = empty_gradient(table, edge_rows, exact) if trains_table else None
            self.to_bias = None if bias is None else torch.zeros_like(bias)

    def add(self, rows: slice, labels: Tensor) -> None:
        """Adds the targets of a slice."""
        hidden, labels = self._hidden[rows], labels[rows].unsqueeze(1)
        # The softmax is computed in float32 at least, even if the products are in half precision.
        logits = ops.product(hidden, self._weight.t())
        logits = logits.to(torch.promote_types(hidden.dtype, torch.float32))
        if self._bias is not None:
            logits += self._bias
        true = logits.gather(1, labels)
        top = logits.amax(1, keepdim=True)
        exponentials = logits.sub_(top).exp_()
        total = exponentials.sum(1, keepdim=True)
        self.loss += (total.log() + top - true).sum()
        if not self.wants_gradients:
            return
        count, scale = self._hidden.shape[0], self._loss_scale
        to_logits = exponentials.mul_(scale / (total * count))
        to_logits.scatter_add_(1, labels, to_logits.new_full((), -scale / count).expand_as(true))
        if self.to_bias is not None:
            self.to_bias += to_logits.sum(0)
        to_logits = to_logits.to(hidden.dtype)
        ops.product(to_logits, self._weight, out=self.to_hidden[rows])
        if self.to_table is None:
            return
        to_weight = item_rows(self.to_table, self._edge_rows)
        if to_weight.dtype != hidden.dtype:
            of_block = to_logits.t() @ hidden
            to_weight.add_(of_block) if rows.start else to_weight.copy_(of_block)
        elif rows.start:
            ops.add_transposed_product(to_weight, to_logits, hidden)
        else:
            torch.mm(to_logits.t(), hidden, out=to_weight)  # was not written yet
