# SPDX-License-Identifier: Apache-2.0
"""Sums and means of bags of rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.lookup import anchored
from cuda_ext.ops.registration import fake_kernel, gradient, is_compiled_for, kernels
from cuda_ext.ops.update import dense_gradient


def embedding_bag(
    table: Tensor,
    rows: Tensor,
    bag_offsets: Tensor,
    dtype: torch.dtype,
    *,
    scale: Tensor | None = None,
    mean: bool = False,
    anchor: Tensor | None = None,
) -> Tensor:
    """Sums or averages the rows of each bag; see `reference.embedding_bag`.

    The table gets a dense gradient if it requires one, and so may `scale`. `mean` divides by the
    number of lookups of a bag. To update the table from the gradient of `anchor`, of the shape of
    the result, give `update_rows` the same scale (`lookup_scale` with `mean`) and `bag_of_lookup`.
    """
    scale = lookup_scale(bag_offsets, rows.numel(), scale) if mean else scale
    if not is_compiled_for(table, dtype):
        sums = reference.embedding_bag(table, rows, bag_offsets, dtype, scale=scale)
        return anchored(sums, anchor)
    bags: Tensor = kernels.embedding_bag(table, rows, bag_offsets, scale, anchor, dtype)
    return bags


@fake_kernel("embedding_bag")
def _(table: Tensor, rows: Tensor, bag_offsets: Tensor, *others: Any) -> Tensor:
    return table.new_empty(bag_offsets.shape[0] - 1, table.shape[1], dtype=others[-1])


@fake_kernel("embedding_bag_scale_backward")
def _(gradient: Tensor, table: Tensor, rows: Tensor, source: Tensor) -> Tensor:
    return table.new_empty(rows.shape[0], dtype=torch.float32)


def _keep_bags(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    table, rows, bag_offsets, scale, _, _ = inputs
    ctx.save_for_backward(table, rows, bag_offsets, scale)


@gradient("embedding_bag", _keep_bags)
def _(ops: Any, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    table, rows, bag_offsets, scale = ctx.saved_tensors
    source = reference.bag_of_lookup(bag_offsets, rows.numel())
    gradient = gradient.contiguous()
    to_table = to_scale = None
    if ctx.needs_input_grad[0]:
        per_lookup = gradient.index_select(0, source)
        if scale is not None:
            per_lookup = per_lookup * scale.unsqueeze(1)
        to_table = dense_gradient(ops, table, rows, per_lookup)
    if ctx.needs_input_grad[3]:
        to_scale = ops.embedding_bag_scale_backward(gradient, table, rows, source)
    to_anchor = gradient if ctx.needs_input_grad[4] else None
    return to_table, None, None, to_scale, to_anchor, None


def lookup_scale(bag_offsets: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Returns each lookup's factor in mean bags: weight / bag size.

    Args:
        bag_offsets: [G + 1] int64.
        count: L.
        weights: [L] float32; 1 without.
    """
    size = bag_offsets.diff().to(torch.float32)
    per_lookup = size.reciprocal().index_select(0, reference.bag_of_lookup(bag_offsets, count))
    return per_lookup if weights is None else weights * per_lookup
