# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention over packed sequences, for training on a CPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.registration import (
    fake_kernel,
    gradient,
    is_compiled_for,
    is_narrow,
    kernels,
)

_PADDING = 64
"""Bytes after the last draw, which the kernel may read."""


def count_draws(query_offsets: Tensor, key_offsets: Tensor, num_heads: int) -> int:
    """Returns the number of random bytes that `attention` needs for dropout.

    The offsets are [S + 1] int64; `num_heads` is H.
    """
    pairs = (query_offsets.diff() * key_offsets.diff()).sum()
    return num_heads * int(pairs) + _PADDING


def attention(
    queries: Tensor | None,
    fused: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    num_heads: int,
    *,
    positions: Tensor | None = None,
    causal: bool = False,
    draws: Tensor | None = None,
    dropped_levels: int = 0,
) -> Tensor:
    """Attends from queries to their sequences' tokens; see `reference.attention`.

    Matrices are floating point. `draws` has `count_draws` bytes; None drops nothing.

    Raises:
        RuntimeError: offsets or positions point outside a sequence, or sizes do not match.
    """
    if is_narrow(fused):
        queries = None if queries is None else queries.float()
        return attention(
            *(queries, fused.float(), query_offsets, key_offsets, num_heads),
            positions=positions,
            causal=causal,
            draws=draws,
            dropped_levels=dropped_levels,
        ).to(fused.dtype)
    arguments = (queries, fused, query_offsets, key_offsets, positions, causal, num_heads)
    if fused.device.type != "cpu" or not is_compiled_for(fused):
        return reference.attention(*arguments, draws, dropped_levels)
    output: Tensor = kernels.attention(*arguments, draws, dropped_levels)[0]
    return output


@fake_kernel("attention")
def _(queries: Tensor | None, fused: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    _, _, _, _, num_heads, *_ = others
    like = fused if queries is None else queries
    columns = fused.shape[1] // (3 if queries is None else 2)
    softmax = like.new_empty(2, like.shape[0], num_heads, dtype=torch.float32)
    return like.new_empty(like.shape[0], columns), softmax


@fake_kernel("attention_backward")
def _(
    gradient: Tensor, softmax: Tensor, queries: Tensor | None, fused: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    count = 0 if queries is None else queries.shape[0]
    return gradient.new_empty(count, gradient.shape[1]), torch.empty_like(fused)


def _keep_inputs(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    queries, fused, query_offsets, key_offsets, positions, ctx.causal, ctx.num_heads, *rest = inputs
    draws, ctx.dropped_levels = rest
    ctx.save_for_backward(output[1], queries, fused, query_offsets, key_offsets, positions, draws)


@gradient("attention", _keep_inputs)
def _(ops: Any, ctx: Any, gradient: Tensor, _to_softmax: Tensor) -> tuple[Any, ...]:
    softmax, queries, fused, query_offsets, key_offsets, positions, draws = ctx.saved_tensors
    to_queries, to_fused = ops.attention_backward(
        *(gradient.contiguous(), softmax, queries, fused, query_offsets, key_offsets, positions),
        *(ctx.causal, ctx.num_heads, draws, ctx.dropped_levels),
    )
    return (None if queries is None else to_queries, to_fused, *[None] * 7)
