# SPDX-License-Identifier: Apache-2.0
"""The ops that models call. Each has its definition in `reference.py`.

The compiled kernels are not built yet: every op runs its reference, on any device.
"""

from typing import Literal

import torch
from torch import Tensor

from cuda_ext import reference

RowOptimizer = Literal["sgd", "rowwise_adagrad", "adam"]

ADAGRAD_EPS = 1e-8
ADAM_EPS = 1e-8
ADAM_BETAS = (0.9, 0.999)


def dot_interaction(features: Tensor) -> Tensor:
    """Pairwise dot products of the vectors of each sample; see `reference.dot_interaction`.

    Args:
        features: [B, N, D] floating point; row 0 is the bottom-MLP output.

    Returns:
        [B, pad8(D + N(N-1)/2)].

    Raises:
        ValueError: not three-dimensional, or no vector.
    """
    if features.ndim != 3 or features.shape[1] < 1:
        raise ValueError(
            f"dot_interaction: features must be [B, N >= 1, D], got {list(features.shape)}"
        )
    return reference.dot_interaction(features)


def embedding_gather(table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Reads rows of the joint table; see `reference.embedding_gather`.

    Args:
        table: [R, D].
        rows: [B, F] int64.
        dtype: of the result.

    Returns:
        [B, F, D].
    """
    return reference.embedding_gather(table, rows, dtype)


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
    if optimizer == "adam":
        return {
            "first_moment": torch.zeros_like(table, dtype=torch.float32),
            "second_moment": torch.zeros_like(table, dtype=torch.float32),
        }
    return {}


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
    inverse_scale: float = 1.0,
    overflow: Tensor | None = None,
) -> None:
    """Applies the gradients of looked-up rows to a table, in place and without a host sync.

    Args:
        optimizer: the rule.
        table: [R, D].
        state: from `row_optimizer_state`.
        rows: [L] int64; rows may occur more than once.
        gradients: [L, D] floating point, scaled by the loss scale.
        lr: scalar float32 tensor on the table's device.
        step: scalar float32 tensor: optimizer steps including this one.
        weight_decay: on the rows that occur.
        inverse_scale: 1 / loss scale.
        overflow: scalar bool tensor; True leaves the table and the state as they are.
    """
    gradients = gradients.to(torch.float32)
    if inverse_scale != 1.0:
        gradients = gradients * inverse_scale
    if optimizer == "sgd":
        reference.update_rows_sgd(table, rows, gradients, lr, weight_decay, overflow)
    elif optimizer == "rowwise_adagrad":
        reference.update_rows_rowwise_adagrad(
            table,
            state["sum_of_squares"],
            rows,
            gradients,
            lr,
            weight_decay,
            ADAGRAD_EPS,
            overflow,
        )
    else:
        reference.update_rows_adam(
            table,
            state["first_moment"],
            state["second_moment"],
            rows,
            gradients,
            lr,
            step,
            weight_decay,
            ADAM_BETAS,
            ADAM_EPS,
            overflow,
        )
