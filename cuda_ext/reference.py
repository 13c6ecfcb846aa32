# SPDX-License-Identifier: Apache-2.0
"""Each op in plain PyTorch: the definition that tests, benchmarks and export share.

Letters: B batch, F tables, N = F + 1 vectors, D embedding dimension, R rows of the joint table,
L lookups (B x F), U distinct rows among them.
"""

import torch
from torch import Tensor

PAD_MULTIPLE = 8
"""Interaction rows are padded to this many columns, so that GEMMs read aligned rows."""


def interaction_width(num_vectors: int, embedding_dim: int) -> int:
    """Returns the columns of `dot_interaction`: D + N(N-1)/2, rounded up to a multiple of 8."""
    width = embedding_dim + num_vectors * (num_vectors - 1) // 2
    return -(-width // PAD_MULTIPLE) * PAD_MULTIPLE


def dot_interaction(features_BND: Tensor) -> Tensor:  # noqa: N803
    """Pairwise dot products of the vectors of each sample, after the bottom-MLP output.

    Args:
        features_BND: [B, N, D] floating point; row 0 is the bottom-MLP output, then the tables.

    Returns:
        [B, pad8(D + N(N-1)/2)]: row 0 | strictly lower triangle, row-major | zeros.
        Source: Naumov et al. 2019 (arXiv:1906.00091), section 2.1; column order of NVIDIA's DLRM.
    """
    batch, num_vectors, dim = features_BND.shape
    products = torch.bmm(features_BND, features_BND.transpose(1, 2))
    i, j = torch.tril_indices(num_vectors, num_vectors, -1, device=features_BND.device)
    padding = interaction_width(num_vectors, dim) - dim - i.numel()
    return torch.cat(
        [
            features_BND[:, 0],
            products.flatten(1).index_select(1, i * num_vectors + j),
            features_BND.new_zeros(batch, padding),
        ],
        dim=1,
    )


def embedding_gather(table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Reads rows of the joint table.

    Args:
        table: [R, D] float32 or bfloat16.
        rows: [B, F] int64, row numbers of the joint table.
        dtype: of the result.

    Returns:
        [B, F, D] of `dtype`.
    """
    return torch.nn.functional.embedding(rows, table).to(dtype)


def sum_duplicate_rows(rows: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Adds up the gradients of rows that occur more than once, in the order they occur.

    Args:
        rows: [L] int64.
        gradients: [L, D].

    Returns:
        (unique rows [U] ascending, their summed gradients [U, D]); the same bits on every run.
    """
    unique, segment = torch.unique(rows, return_inverse=True)
    summed = gradients.new_zeros(unique.numel(), gradients.shape[1])
    return unique, summed.index_add_(0, segment, gradients)


def _unless(skip: Tensor | None, new: Tensor, old: Tensor | float) -> Tensor:
    """Returns `new`, or `old` where the step is to be skipped; decided on the device."""
    return new if skip is None else torch.where(skip, old, new)


def update_rows_sgd(
    table: Tensor,
    rows: Tensor,
    gradients: Tensor,
    lr: Tensor,
    weight_decay: float,
    skip: Tensor | None = None,
) -> None:
    """SGD on the looked-up rows: w -= lr * (g + weight_decay * w), duplicates summed.

    Args:
        table: [R, D], changed in place.
        rows: [L] int64.
        gradients: [L, D] float32.
        lr: scalar tensor.
        weight_decay: applied once to each row that occurs.
        skip: scalar bool tensor; True leaves the table as it is.
    """
    if weight_decay:
        rows, gradients = sum_duplicate_rows(rows, gradients)
        gradients = gradients + weight_decay * table.index_select(0, rows)
    table.index_add_(0, rows, _unless(skip, gradients * -lr, 0.0).to(table.dtype))


def update_rows_rowwise_adagrad(
    table: Tensor,
    sum_of_squares: Tensor,
    rows: Tensor,
    gradients: Tensor,
    lr: Tensor,
    weight_decay: float,
    eps: float,
    skip: Tensor | None = None,
) -> None:
    """Row-wise Adagrad: one accumulator per row, the mean of the squared row gradient.

    Args:
        table: [R, D], changed in place.
        sum_of_squares: [R] float32, changed in place.
        rows: [L] int64.
        gradients: [L, D] float32.
        lr: scalar tensor.
        weight_decay: added to the gradient of each row that occurs.
        eps: added to the root.
        skip: scalar bool tensor; True leaves everything as it is.

    Source: Gupta et al. 2014 (arXiv:1409.4246); the form FBGEMM calls EXACT_ROWWISE_ADAGRAD.
    """
    rows, gradients = sum_duplicate_rows(rows, gradients)
    if weight_decay:
        gradients = gradients + weight_decay * table.index_select(0, rows)
    old = sum_of_squares.index_select(0, rows)
    total = _unless(skip, old + gradients.square().mean(1), old)
    sum_of_squares.index_copy_(0, rows, total)
    change = gradients * (-lr / (total.sqrt() + eps)).unsqueeze(1)
    table.index_add_(0, rows, _unless(skip, change, 0.0).to(table.dtype))


def update_rows_adam(
    table: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    rows: Tensor,
    gradients: Tensor,
    lr: Tensor,
    step: Tensor,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    skip: Tensor | None = None,
) -> None:
    """Lazy Adam: the moments of a row move only in steps in which the row occurs.

    Args:
        table: [R, D], changed in place.
        first_moment: [R, D] float32, changed in place.
        second_moment: [R, D] float32, changed in place.
        rows: [L] int64.
        gradients: [L, D] float32.
        lr: scalar tensor.
        step: scalar tensor, optimizer steps including this one (for the bias correction).
        weight_decay: decoupled (AdamW), on the rows that occur.
        betas: decay of the two moments.
        eps: added to the root.
        skip: scalar bool tensor; True leaves everything as it is.

    Source: Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1; lazy rows as torch.optim.SparseAdam.
    """
    rows, gradients = sum_duplicate_rows(rows, gradients)
    old_first = first_moment.index_select(0, rows)
    old_second = second_moment.index_select(0, rows)
    first = torch.lerp(gradients, old_first, betas[0])
    second = torch.lerp(gradients.square(), old_second, betas[1])
    root = (second / (1 - betas[1] ** step)).sqrt() + eps
    change = -lr * (first / (1 - betas[0] ** step)) / root
    if weight_decay:
        change = change - lr * weight_decay * table.index_select(0, rows)
    first_moment.index_copy_(0, rows, _unless(skip, first, old_first))
    second_moment.index_copy_(0, rows, _unless(skip, second, old_second))
    table.index_add_(0, rows, _unless(skip, change, 0.0).to(table.dtype))
