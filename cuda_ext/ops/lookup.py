# SPDX-License-Identifier: Apache-2.0
"""Converts ids to row numbers, and looks up rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.registration import fake_kernel, gradient, is_compiled_for, kernels
from cuda_ext.ops.update import dense_gradient

NO_BAD_ID = torch.iinfo(torch.int64).max
"""Initial value of `bad` of `joint_rows`."""


def joint_rows(
    ids: Tensor,
    offsets: Tensor,
    *,
    bag_offsets: Tensor | None = None,
    hash_indices: bool = False,
    dtype: torch.dtype = torch.int64,
    bad: Tensor | None = None,
) -> Tensor:
    """Converts ids to row numbers of the joint table; see `reference.joint_rows`.

    `bad`, [1] int64, starts as `NO_BAD_ID` and is lowered to the position of the first bad id; the
    row of a bad id is unspecified. With `bad`, nothing waits for a device; if it is None, a bad id
    raises at once.

    Raises:
        RuntimeError, ValueError: an id is outside its table; names feature, sample and value.
    """
    if not is_compiled_for(ids):
        return reference.joint_rows(
            ids, offsets, bag_offsets=bag_offsets, hash_indices=hash_indices, dtype=dtype
        )
    joint: Tensor
    if bad is None:
        joint = kernels.joint_rows(ids.contiguous(), offsets, bag_offsets, hash_indices, dtype)
    else:
        joint = kernels.joint_rows_reporting(
            ids.contiguous(), offsets, bag_offsets, bad, hash_indices, dtype
        )
    return joint


@fake_kernel("joint_rows", "joint_rows_reporting")
def _(ids: Tensor, *others: Any) -> Tensor:
    return ids.new_empty(ids.shape, dtype=others[-1])


def stack_ids(groups: Sequence[Tensor], features: Sequence[int]) -> Tensor:
    """Puts columns of ids side by side; see `reference.stack_ids`.

    On a GPU one kernel reads all groups; nothing waits for the device.

    Raises:
        RuntimeError, ValueError: `features` are not the numbers from 0 to F - 1, each once.
    """
    if not is_compiled_for(groups[0]):
        return reference.stack_ids(groups, features)
    ids: Tensor = kernels.stack_ids([group.contiguous() for group in groups], list(features))
    return ids


@fake_kernel("stack_ids")
def _(groups: Sequence[Tensor], features: Sequence[int]) -> Tensor:
    wide = any(group.dtype == torch.int64 for group in groups)
    dtype = torch.int64 if wide else torch.int32
    return groups[0].new_empty(groups[0].shape[1], len(features), dtype=dtype)


def row_gradient_anchor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a leaf that receives the gradient of looked-up rows.

    `shape` and `dtype` are those of the looked-up vectors, [B, F, D], or of the bags, [G, D]. It
    takes the memory of one element.
    """
    return torch.zeros((), dtype=dtype, device=device).expand(shape).detach().requires_grad_()


class _ReferenceAnchor(torch.autograd.Function):
    """Passes the gradient of its result to the anchor, on the reference path."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, anchor: Tensor) -> Tensor:
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.contiguous()


def anchored(vectors: Tensor, anchor: Tensor | None) -> Tensor:
    """Returns vectors whose gradient goes to the anchor, on the reference path."""
    if anchor is None:
        return vectors
    output: Tensor = _ReferenceAnchor.apply(vectors, anchor)  # type: ignore[no-untyped-call]
    return output


def embedding_gather(
    table: Tensor, rows: Tensor, dtype: torch.dtype, *, anchor: Tensor | None = None
) -> Tensor:
    """Reads rows of the joint table; see `reference.embedding_gather`.

    A table that requires a gradient gets a dense one. `anchor`, from `row_gradient_anchor`, has the
    shape and type of the result.
    """
    if not is_compiled_for(table, dtype):
        return anchored(reference.embedding_gather(table, rows, dtype), anchor)
    vectors: Tensor = kernels.embedding_gather(table, rows.contiguous(), anchor, dtype)
    return vectors


@fake_kernel("embedding_gather")
def _(table: Tensor, rows: Tensor, anchor: Tensor | None, dtype: torch.dtype) -> Tensor:
    return table.new_empty(*rows.shape, table.shape[1], dtype=dtype)


def _keep_lookups(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    table, rows, _, _ = inputs
    ctx.save_for_backward(table, rows)


@gradient("embedding_gather", _keep_lookups)
def _(ops: Any, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    table, rows = ctx.saved_tensors
    to_table = None
    if ctx.needs_input_grad[0]:
        to_table = dense_gradient(ops, table, rows, gradient)
    return to_table, None, gradient if ctx.needs_input_grad[2] else None, None


class _SparseEmbedding(torch.autograd.Function):
    """A lookup whose table gradient is sparse COO, with one entry per lookup."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.table_shape, ctx.table_dtype = table.shape, table.dtype
        return embedding_gather(table, rows, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        index = rows.reshape(1, -1).to(torch.int64)
        values = gradient.reshape(-1, ctx.table_shape[1]).to(ctx.table_dtype)
        sparse = torch.sparse_coo_tensor(
            index, values, ctx.table_shape, check_invariants=False, is_coalesced=False
        )
        return sparse, None, None


def sparse_embedding(table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Reads rows like `embedding_gather`, with a sparse table gradient for torch.optim.

    The gradient is an uncoalesced COO tensor with one entry per lookup.
    """
    vectors: Tensor = _SparseEmbedding.apply(table, rows, dtype)  # type: ignore[no-untyped-call]
    return vectors
