# SPDX-License-Identifier: Apache-2.0
"""Sums of bags of rows."""

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
    anchor: Tensor | None = None,
) -> Tensor:
    """Sums the rows of each bag; see `reference.embedding_bag`.

    The table gets a dense gradient if it requires one; `scale` gets no gradient. To update the
    table from the gradient of `anchor`, which has the shape of the result, pass `update_rows` the
    same scale, and `bag_of_lookup` as the source.
    """
    if not is_compiled_for(table, dtype):
        sums = reference.embedding_bag(table, rows, bag_offsets, dtype, scale=scale)
        return anchored(sums, anchor)
    bags: Tensor = kernels.embedding_bag(table, rows, bag_offsets, scale, anchor, dtype)
    return bags


@fake_kernel("embedding_bag")
def _(table: Tensor, rows: Tensor, bag_offsets: Tensor, *others: Any) -> Tensor:
    return table.new_empty(bag_offsets.shape[0] - 1, table.shape[1], dtype=others[-1])


def _keep_bags(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    table, rows, bag_offsets, scale, _, _ = inputs
    ctx.save_for_backward(table, rows, bag_offsets, scale)


@gradient("embedding_bag", _keep_bags)
def _(ops: Any, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    table, rows, bag_offsets, scale = ctx.saved_tensors
    to_table = None
    if ctx.needs_input_grad[0]:
        source = reference.bag_of_lookup(bag_offsets, rows.numel())
        per_lookup = gradient.index_select(0, source)
        if scale is not None:
            per_lookup = per_lookup * scale.unsqueeze(1)
        to_table = dense_gradient(ops, table, rows, per_lookup)
    to_anchor = gradient.contiguous() if ctx.needs_input_grad[4] else None
    return to_table, None, None, None, to_anchor, None
