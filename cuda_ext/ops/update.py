# SPDX-License-Identifier: Apache-2.0
"""Updates table rows from the gradients of their lookups."""

from typing import Any

import torch
from torch import Tensor

from cuda_ext import RowOptimizer, reference
from cuda_ext.ops.registration import fake_kernel, is_compiled_for, kernels
from cuda_ext.row_rules import ROW_RULES, Allocate, RowStep


def row_optimizer_state(
    optimizer: RowOptimizer, table: Tensor, allocate: Allocate | None = None
) -> dict[str, Tensor]:
    """Returns zeroed optimizer state for the rows of a table; see `RowRule.new_state`."""
    return ROW_RULES[optimizer].new_state(table, allocate)


def sort_rows(rows: Tensor, num_table_rows: int) -> tuple[Tensor, Tensor]:
    """Sorts lookups by row, so that duplicates are adjacent.

    Rows are known before the forward pass: on a GPU the sort can overlap with it.

    Args:
        rows: int32 or int64 of any shape, L numbers.
        num_table_rows: R.

    Returns:
        (rows [L] ascending, [L] int32 position that each came from); equal rows keep their order.
    """
    if not is_compiled_for(rows):
        ascending, positions = rows.reshape(-1).sort(stable=True)
        return ascending, positions.to(torch.int32)
    result: tuple[Tensor, Tensor] = kernels.sort_rows(rows.contiguous(), num_table_rows)
    return result


@fake_kernel("sort_rows")
def _(rows: Tensor, num_table_rows: int) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.numel()), rows.new_empty(rows.numel(), dtype=torch.int32)


def update_rows(
    optimizer: RowOptimizer,
    table: Tensor,
    state: dict[str, Tensor],
    rows: Tensor,
    gradients: Tensor,
    step: RowStep,
    *,
    source: Tensor | None = None,
    scale: Tensor | None = None,
    sorted_rows: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Applies the gradients of looked-up rows to a table; see `reference.update_rows`.

    Works in place, without a gradient tensor of the table and without waiting for a device.
    Duplicates are added in a fixed order: the bits are the same on every run and for every number
    of threads.

    The tensors of `step` are on the table's device. `sorted_rows` is the result of
    `sort_rows(rows, R)`; None sorts here.
    """
    if not (is_compiled_for(gradients) and is_compiled_for(table)):
        reference.update_rows(
            *(optimizer, table, state, rows, gradients, step),
            source=source,
            scale=scale,
        )
        return
    if not table.shape[0]:
        return  # kernels need a pointer to the state, and empty state has no memory
    gradients = gradients.contiguous()
    plain_sgd = optimizer == "sgd" and not step.weight_decay and table.dtype == torch.float32
    if plain_sgd and table.device.type == "cpu":
        kernels.sgd_rows_unsorted(
            *(table, rows.contiguous(), gradients, source, scale),
            *(step.lr, step.inverse_scale, step.overflow),
        )
        return
    ordered = sorted_rows or sort_rows(rows, table.shape[0])
    call_update_rows(kernels, optimizer, table, state, ordered, gradients, step, source, scale)


def call_update_rows(
    ops: Any,
    optimizer: RowOptimizer,
    table: Tensor,
    state: dict[str, Tensor],
    sorted_rows: tuple[Tensor, Tensor],
    gradients: Tensor,
    step: RowStep,
    source: Tensor | None = None,
    scale: Tensor | None = None,
) -> None:
    """Calls `update_rows` of a library's `ops`, with contiguous gradients."""
    hyperparameters = list(ROW_RULES[optimizer].hyperparameters.values())
    ops.update_rows(
        *(table, list(state.values()), *sorted_rows, gradients, source, scale),
        *(step.lr, step.step, step.inverse_scale, step.overflow),
        *(optimizer, step.weight_decay, hyperparameters, step.rounding_seed),
    )


@fake_kernel("update_rows", "sgd_rows_unsorted")
def _(*arguments: object) -> None:
    return None


ABSENT_ROW = -1
"""Row number of a lookup without a row; see `skips_absent_rows`."""


def skips_absent_rows(table: Tensor) -> bool:
    """Returns True if `update_rows` accepts lookups without a row, and skips them."""
    return table.is_cuda and is_compiled_for(table)


def sum_by_row(rows: Tensor, gradients: Tensor, num_table_rows: int) -> Tensor:
    """Adds up the gradients of each row, in a fixed order.

    Args:
        rows: [L] int32 or int64.
        gradients: [L, D] floating point.
        num_table_rows: R.

    Returns:
        [R, D] float32 (float64 for float64 gradients), zeros for rows without a lookup.
    """
    exact = torch.promote_types(gradients.dtype, torch.float32)
    table = gradients.new_empty(num_table_rows, gradients.shape[1], dtype=exact)
    if not is_compiled_for(gradients):
        index = rows.reshape(-1).to(torch.int64)
        return torch.zeros_like(table).index_add_(0, index, gradients.to(exact))
    return dense_gradient(kernels, table, rows, gradients)


def dense_gradient(ops: Any, table: Tensor, rows: Tensor, gradients: Tensor) -> Tensor:
    """Sums row gradients into a dense table gradient, deterministically.

    Args:
        ops: the library's compiled ops.
        table: [R, D].
        rows: int32 or int64 of any shape, L numbers.
        gradients: L rows of D columns, in any shape [..., D].
    """
    gradients = gradients.reshape(-1, table.shape[1]).contiguous()
    rows = rows.reshape(-1)
    total = torch.zeros_like(table, dtype=torch.float32)
    descent = RowStep(lr=total.new_full((), -1.0), step=total.new_zeros(()))
    call_update_rows(ops, "sgd", total, {}, ops.sort_rows(rows, table.shape[0]), gradients, descent)
    return total.to(table.dtype)
