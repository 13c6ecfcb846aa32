# SPDX-License-Identifier: Apache-2.0
"""The dot interaction, unfused or fused with the embedding lookup."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.lookup import embedding_gather
from cuda_ext.ops.registration import (
    allow_tf32,
    fake_kernel,
    gradient,
    is_compiled_for,
    kernels,
)
from cuda_ext.ops.update import dense_gradient

MAX_VECTORS = 64
MAX_DIM = 256


def fits_kernels(num_vectors: int, dim: int) -> bool:
    """Returns True if the compiled kernels take samples of this size."""
    return num_vectors <= MAX_VECTORS and dim <= MAX_DIM


def dot_interaction(features: Tensor, bottom: Tensor | None = None) -> Tensor:
    """Computes pairwise dot products of each sample's vectors; see `reference.dot_interaction`.

    Passing `bottom` separately saves a concatenation here and a split in backward.

    Raises:
        ValueError: features are not three-dimensional, or have no vector.
    """
    vectors = features.shape[1] + (bottom is not None) if features.ndim == 3 else 0
    if vectors < 1:
        raise ValueError(
            f"dot_interaction: features must be [B, N >= 1, D], got {list(features.shape)}"
        )
    if not is_compiled_for(features) or not fits_kernels(vectors, features.shape[2]):
        return reference.dot_interaction(features, bottom)
    features = features.contiguous()
    if bottom is None:
        features, bottom = features[:, 1:], features[:, 0]
    output: Tensor = kernels.dot_interaction(features, bottom, allow_tf32(features))
    return output


@fake_kernel("dot_interaction")
def _(features: Tensor, bottom: Tensor, allow_tf32: bool) -> Tensor:
    width = reference.interaction_width(features.shape[1] + 1, features.shape[2])
    return features.new_empty(features.shape[0], width)


@fake_kernel("dot_interaction_backward")
def _(
    gradient: Tensor, features: Tensor, bottom: Tensor, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    return features.new_empty(features.shape), bottom.new_empty(bottom.shape)


def _keep_vectors(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    features, bottom, ctx.allow_tf32 = inputs
    ctx.save_for_backward(features, bottom)


@gradient("dot_interaction", _keep_vectors)
def _(ops: Any, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    features, bottom = ctx.saved_tensors
    to_features, to_bottom = ops.dot_interaction_backward(
        gradient, features, bottom, ctx.allow_tf32
    )
    wants_features, wants_bottom, *_ = ctx.needs_input_grad
    return to_features if wants_features else None, to_bottom if wants_bottom else None, None


def gather_dot_interaction(
    table: Tensor,
    rows: Tensor,
    bottom: Tensor,
    *,
    anchor: Tensor | None = None,
    overflow: Tensor | None = None,
) -> Tensor:
    """Looks up rows and interacts in one pass, without materializing [B, N, D].

    Args:
        table: [R, D] float32 or bfloat16. It must not change between forward and backward, which
            reads its rows again.
        rows: [B, F] int32 or int64, from `joint_rows`.
        bottom: [B, D] floating point.
        anchor: leaf from `row_gradient_anchor([B, F, D])` that receives the gradient of the rows;
            None if that is not needed.
        overflow: bool scalar, which backward sets to True if a gradient of the looked-up rows is
            infinite or NaN; None checks nothing.

    Returns:
        The result of `dot_interaction` for the looked-up rows.
    """
    # Only float16 needs a loss scale, so the CPU kernels do not look for overflow.
    compiled = is_compiled_for(bottom) and (overflow is None or bottom.is_cuda)
    if not compiled or not fits_kernels(rows.shape[1] + 1, table.shape[1]):
        vectors = embedding_gather(table, rows, bottom.dtype, anchor=anchor)
        if overflow is not None and vectors.requires_grad:
            vectors.register_hook(partial(reference.note_overflow, overflow))  # type: ignore[no-untyped-call]
        return dot_interaction(vectors, bottom)
    output: Tensor = kernels.gather_dot_interaction(
        table, rows, bottom, anchor, overflow, allow_tf32(bottom)
    )
    return output


@fake_kernel("gather_dot_interaction")
def _(table: Tensor, rows: Tensor, bottom: Tensor, *others: Any) -> Tensor:
    width = reference.interaction_width(rows.shape[1] + 1, table.shape[1])
    return bottom.new_empty(rows.shape[0], width)


@fake_kernel("gather_dot_interaction_backward")
def _(
    gradient: Tensor, table: Tensor, rows: Tensor, bottom: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    return bottom.new_empty(*rows.shape, table.shape[1]), bottom.new_empty(bottom.shape)


def _keep_lookups(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    table, rows, bottom, _, ctx.overflow, ctx.allow_tf32 = inputs
    ctx.save_for_backward(table, rows, bottom)


@gradient("gather_dot_interaction", _keep_lookups)
def _(ops: Any, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    table, rows, bottom = ctx.saved_tensors
    to_vectors, to_bottom = ops.gather_dot_interaction_backward(
        gradient, table, rows, bottom, ctx.overflow, ctx.allow_tf32
    )
    to_table = None
    if ctx.needs_input_grad[0]:
        to_table = dense_gradient(ops, table, rows, to_vectors)
    wanted = zip(ctx.needs_input_grad, (to_table, None, to_bottom, to_vectors), strict=False)
    return *(gradient if needed else None for needed, gradient in wanted), None, None
