# SPDX-License-Identifier: Apache-2.0
"""The ops that models call. Each has its definition in `reference.py`.

Compiled kernels run where they were built for the device, the reference elsewhere; results agree
within rounding. `python -m cuda_ext` tells which path runs and why.
"""

from typing import Any

import torch
from torch import Tensor

from cuda_ext import library, reference, registration
from cuda_ext.huge_pages import use_huge_pages
from cuda_ext.reference import ADAGRAD_EPS, ADAM_BETAS, ADAM_EPS, RowOptimizer, bag_of_lookup

__all__ = [
    "RowOptimizer",
    "bag_of_lookup",
    "dot_interaction",
    "embedding_bag",
    "embedding_gather",
    "gather_dot_interaction",
    "joint_rows",
    "lookup_scale",
    "row_gradient_anchor",
    "row_optimizer_state",
    "sort_rows",
    "sparse_embedding",
    "update_rows",
    "use_huge_pages",
]

MAX_VECTORS = 64
MAX_DIM = 256

if library.LOAD_ERROR is None:
    registration.register(library.NAMESPACE)
_kernels: Any = torch.ops.cuda_ext


def _compiled(tensor: Tensor) -> bool:
    return library.path_of(tensor.device.type) == "compiled"


def _fits_interaction(num_vectors: int, dim: int) -> bool:
    return num_vectors <= MAX_VECTORS and dim <= MAX_DIM


def _allow_tf32(tensor: Tensor) -> bool:
    # fp32_precision answers for the older allow_tf32 too, which raises once this one was set.
    return tensor.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"


def dot_interaction(
    features: Tensor, bottom: Tensor | None = None, *, self_interaction: bool = False
) -> Tensor:
    """Pairwise dot products of the vectors of each sample; see `reference.dot_interaction`.

    Args:
        features: [B, N, D] floating point, row 0 the bottom-MLP output; [B, N - 1, D] with
            `bottom`.
        bottom: [B, D] of the same type. Given apart, nothing has to be concatenated.
        self_interaction: include the dot product of each vector with itself.

    Returns:
        [B, pad8(D + N(N-1)/2)]; N(N+1)/2 with `self_interaction`.

    Raises:
        ValueError: not three-dimensional, or no vector.
    """
    vectors = features.shape[1] + (bottom is not None) if features.ndim == 3 else 0
    if vectors < 1:
        raise ValueError(
            f"dot_interaction: features must be [B, N >= 1, D], got {list(features.shape)}"
        )
    if not _compiled(features) or not _fits_interaction(vectors, features.shape[2]):
        return reference.dot_interaction(features, bottom, self_interaction=self_interaction)
    found: Tensor = _kernels.dot_interaction(
        features.contiguous(), bottom, self_interaction, _allow_tf32(features)
    )
    return found


def gather_dot_interaction(
    table: Tensor,
    rows: Tensor,
    bottom: Tensor,
    *,
    self_interaction: bool = False,
    anchor: Tensor | None = None,
) -> Tensor:
    """Lookup and interaction in one pass, forward and backward, without [B, N, D] in memory.

    Args:
        table: [R, D] float32 or bfloat16.
        rows: [B, F] int32 or int64, from `joint_rows`.
        bottom: [B, D] floating point.
        self_interaction: as in `dot_interaction`.
        anchor: from `row_gradient_anchor([B, F, D])`. The table must not change between forward
            and backward, which reads its rows again.

    Returns:
        What `dot_interaction` gives for the looked-up rows.
    """
    if not _compiled(table) or not _fits_interaction(rows.shape[1] + 1, table.shape[1]):
        vectors = embedding_gather(table, rows, bottom.dtype, anchor=anchor)
        return dot_interaction(vectors, bottom, self_interaction=self_interaction)
    found: Tensor = _kernels.gather_dot_interaction(
        table, rows, bottom, anchor, self_interaction, _allow_tf32(bottom)
    )
    return found


def joint_rows(
    ids: Tensor,
    offsets: Tensor,
    *,
    bag_offsets: Tensor | None = None,
    hash_indices: bool = False,
    dtype: torch.dtype = torch.int64,
    bad: Tensor | None = None,
) -> Tensor:
    """Row numbers of the joint table for the ids of each feature; see `reference.joint_rows`.

    Args:
        ids: [B, F], or [L] with `bag_offsets`; int8 to int64; never changed.
        offsets: [F + 1] int64: first row of each feature, then R.
        bag_offsets: [B * F + 1] int64: bag b * F + f holds the ids of feature f of sample b.
        hash_indices: take ids modulo the size of their table.
        dtype: int32 or int64, of the result.
        bad: [1] int64, lowered to the position of the first bad id found since it was filled with
            2^63 - 1; its row is unspecified. With it nothing waits for a device; without it a bad
            id raises at once.

    Returns:
        The rows, in the shape of `ids`.

    Raises:
        RuntimeError, ValueError: an id outside its table; names feature, sample and value.
    """
    if not _compiled(ids):
        return reference.joint_rows(
            ids, offsets, bag_offsets=bag_offsets, hash_indices=hash_indices, dtype=dtype
        )
    found: Tensor
    if bad is None:
        found = _kernels.joint_rows(ids.contiguous(), offsets, bag_offsets, hash_indices, dtype)
    else:
        found = _kernels.joint_rows_reporting(
            ids.contiguous(), offsets, bag_offsets, bad, hash_indices, dtype
        )
    return found


def row_gradient_anchor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a leaf of the graph through which the gradient of looked-up rows leaves.

    Args:
        shape: of the looked-up vectors, [B, F, D]; of the bags, [G, D].
        dtype: of the looked-up vectors.
        device: of the table.

    Returns:
        A tensor of that shape over one element. After backward its `grad` is the gradient.
    """
    return torch.zeros((), dtype=dtype, device=device).expand(shape).detach().requires_grad_()


class _ReferenceAnchor(torch.autograd.Function):
    """Hands the gradient of its result to the anchor, for the reference path."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,  # noqa: ARG004
        vectors: Tensor,
        anchor: Tensor,  # noqa: ARG004
    ) -> Tensor:
        return vectors.view_as(vectors)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx,  # noqa: ARG004
        gradient: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return gradient, gradient.contiguous()


def _anchored(vectors: Tensor, anchor: Tensor | None) -> Tensor:
    if anchor is None:
        return vectors
    found: Tensor = _ReferenceAnchor.apply(vectors, anchor)  # type: ignore[no-untyped-call]
    return found


def embedding_gather(
    table: Tensor, rows: Tensor, dtype: torch.dtype, *, anchor: Tensor | None = None
) -> Tensor:
    """Reads rows of the joint table; see `reference.embedding_gather`.

    Args:
        table: [R, D] float32 or bfloat16. With requires_grad it gets a dense gradient.
        rows: int32 or int64 of any shape.
        dtype: of the result.
        anchor: from `row_gradient_anchor`, of the shape and type of the result.

    Returns:
        [..., D].
    """
    if not _compiled(table):
        return _anchored(reference.embedding_gather(table, rows, dtype), anchor)
    found: Tensor = _kernels.embedding_gather(table, rows.contiguous(), anchor, dtype)
    return found


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

    Args:
        table: [R, D] float32 or bfloat16. With requires_grad it gets a dense gradient.
        rows: [L] int32 or int64, the lookups of all bags.
        bag_offsets: [G + 1] int64, where each bag begins, then L.
        dtype: of the result.
        scale: [L] float32, weight of each lookup; may require a gradient.
        mean: divide by the number of lookups of the bag.
        anchor: from `row_gradient_anchor([G, D])`. To update the table from `anchor.grad`, give
            `update_rows` the same scale (`lookup_scale` with `mean`) and `bag_of_lookup`.

    Returns:
        [G, D], zeros for an empty bag.
    """
    scale = lookup_scale(bag_offsets, rows.numel(), scale) if mean else scale
    if not _compiled(table):
        found = reference.embedding_bag(table, rows, bag_offsets, dtype, scale=scale)
        return _anchored(found, anchor)
    bags: Tensor = _kernels.embedding_bag(table, rows, bag_offsets, scale, anchor, dtype)
    return bags


def lookup_scale(bag_offsets: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Returns the factor of each lookup of mean bags, [L] float32: weight / size of its bag.

    Args:
        bag_offsets: [G + 1] int64.
        count: L.
        weights: [L] float32; 1 without.
    """
    size = bag_offsets.diff().to(torch.float32)
    per_lookup = size.reciprocal().index_select(0, bag_of_lookup(bag_offsets, count))
    return per_lookup if weights is None else weights * per_lookup


class _SparseEmbedding(torch.autograd.Function):
    """A lookup whose gradient of the table is a sparse COO tensor, one entry per lookup."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, table: Tensor, rows: Tensor, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.table_shape = table.shape  # type: ignore[attr-defined]
        ctx.table_dtype = table.dtype  # type: ignore[attr-defined]
        return embedding_gather(table, rows, dtype)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors  # type: ignore[attr-defined]
        shape = ctx.table_shape  # type: ignore[attr-defined]
        values = gradient.reshape(-1, shape[1]).to(ctx.table_dtype)  # type: ignore[attr-defined]
        sparse = torch.sparse_coo_tensor(
            rows.reshape(1, -1).to(torch.int64),
            values,
            shape,
            check_invariants=False,
            is_coalesced=False,
        )
        return sparse, None, None


def sparse_embedding(table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """`embedding_gather` with a sparse gradient of the table, for optimizers of torch.optim.

    Args:
        table: [R, D], requires_grad.
        rows: int32 or int64 of any shape.
        dtype: of the result.

    Returns:
        [..., D]; the table's gradient is an uncoalesced COO tensor with one entry per lookup.
    """
    found: Tensor = _SparseEmbedding.apply(table, rows, dtype)  # type: ignore[no-untyped-call]
    return found


def row_optimizer_state(optimizer: RowOptimizer, table: Tensor) -> dict[str, Tensor]:
    """Returns fresh optimizer state for the rows of a table.

    Args:
        optimizer: the rule.
        table: [R, D].

    Returns:
        Named float32 tensors whose first dimension is R; none for SGD.
    """
    if optimizer == "rowwise_adagrad":
        return {"sum_of_squares": table.new_zeros(table.shape[0], dtype=torch.float32)}
    if optimizer == "adagrad":
        return {"sum_of_squares": torch.zeros_like(table, dtype=torch.float32)}
    if optimizer == "adam":
        return {
            "first_moment": torch.zeros_like(table, dtype=torch.float32),
            "second_moment": torch.zeros_like(table, dtype=torch.float32),
        }
    return {}


def sort_rows(rows: Tensor, num_table_rows: int) -> tuple[Tensor, Tensor]:
    """Sorts the lookups by row, so that `update_rows` finds duplicates side by side.

    Rows are known before the forward pass: on a GPU the sort can run beside it.

    Args:
        rows: int32 or int64 of any shape, L in all.
        num_table_rows: R.

    Returns:
        (rows [L] ascending, positions [L] int32 that each came from); equal rows keep their order.
    """
    if not _compiled(rows):
        found, positions = rows.reshape(-1).sort(stable=True)
        return found, positions.to(torch.int32)
    result: tuple[Tensor, Tensor] = _kernels.sort_rows(rows.contiguous(), num_table_rows)
    return result


def update_rows(
    optimizer: RowOptimizer,
    table: Tensor,
    state: dict[str, Tensor],
    rows: Tensor,
    gradients: Tensor,
    *,
    lr: Tensor,
    step: Tensor,
    weight_decay: float = 0.0,
    inverse_scale: Tensor | None = None,
    overflow: Tensor | None = None,
    source: Tensor | None = None,
    scale: Tensor | None = None,
    table_low: Tensor | None = None,
    rounding_seed: int = 0,
    sorted_rows: tuple[Tensor, Tensor] | None = None,
    deterministic: bool = True,
) -> None:
    """Applies the gradients of looked-up rows to a table; see `reference.update_rows`.

    In place, without a gradient tensor of the table and without waiting for a device. Duplicates
    are added in a fixed order: the same bits on every run and for every number of threads.

    Args:
        optimizer: the rule.
        table: [R, D] float32, or bfloat16 (written with stochastic rounding).
        state: from `row_optimizer_state`.
        rows: [L] int32 or int64; a row may occur more than once.
        gradients: [L, D] floating point, scaled by the loss scale; [G, D] with `source`.
        lr: scalar float32 tensor on the table's device.
        step: scalar float32 tensor: optimizer steps including this one.
        weight_decay: on the rows that occur.
        inverse_scale: scalar float32 tensor, 1 / loss scale.
        overflow: scalar bool tensor; True leaves the table and the state as they are.
        source: [L] int32, row of `gradients` for each lookup; see `bag_of_lookup`.
        scale: [L] float32, factor of each lookup.
        table_low: [R, D] int16: a planar-split table, `table` holding the bfloat16 high halves.
        rounding_seed: of the stochastic rounding.
        sorted_rows: from `sort_rows(rows, R)`, if it was called before.
        deterministic: False lets SGD on a CUDA float32 table add in any order, without a sort. (On
            a CPU it goes without a sort in any case, applying lookups in their order.)
    """
    if not _compiled(table) or table.dtype == torch.float64:
        reference.update_rows(
            optimizer,
            table,
            state,
            rows,
            gradients,
            lr=lr,
            step=step,
            weight_decay=weight_decay,
            inverse_scale=inverse_scale,
            overflow=overflow,
            source=source,
            scale=scale,
            table_low=table_low,
            rounding_seed=rounding_seed,
        )
        return
    if not table.shape[0]:
        return  # its state has no memory to point at
    gradients = gradients.contiguous()
    plain_sgd = optimizer == "sgd" and not weight_decay and table.dtype == torch.float32
    # On a CPU the unsorted rule is deterministic too, and faster.
    if plain_sgd and (not deterministic or table.device.type == "cpu"):
        _kernels.sgd_rows_unsorted(
            table, rows.contiguous(), gradients, source, scale, lr, inverse_scale, overflow
        )
        return
    first, second, *_ = [*state.values(), None, None]
    by_row, positions = sorted_rows or sort_rows(rows, table.shape[0])
    _kernels.update_rows(
        *(table, table_low, first, second, by_row, positions, gradients, source, scale),
        *(lr, step, inverse_scale, overflow, optimizer, weight_decay),
        *(ADAM_EPS if optimizer == "adam" else ADAGRAD_EPS, *ADAM_BETAS, rounding_seed),
    )
