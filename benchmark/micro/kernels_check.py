# SPDX-License-Identifier: Apache-2.0
"""Checks that candidates of a benchmark agree before they are timed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmark.micro.kernels_tables import IdBatch, Tables
from cuda_ext.error_bounds import Bounded


def check_error(case: str, result: Tensor, bound: Bounded) -> None:
    """Checks that a result's error is within its rounding bound.

    Args:
        case: for the message.
        result: of an implementation that computes in float32.
        bound: the truth, and the bound of the error.

    Raises:
        ArithmeticError: an element is farther off.
    """
    excess = bound.excess(result)
    if excess > 1:
        raise ArithmeticError(f"{case}: an error is {excess:.3g} times what rounding can make")


class TouchedRows:
    """Rows looked up by some batches, few enough for float64.

    Args:
        batches: what is looked up.
    """

    def __init__(self, batches: Sequence[IdBatch]) -> None:
        columns = [torch.cat(column) for column in zip(*(b.columns for b in batches), strict=True)]
        self._rows = [torch.unique(column) for column in columns]

    def of(self, tables: Tables) -> Tensor:
        """Returns a copy of the rows of all tables, [U, D]."""
        return torch.cat([t[rows] for t, rows in zip(tables.tables(), self._rows, strict=True)])

    def numbers(self, batch: IdBatch) -> Tensor:
        """Returns each id's number among these rows, [B, F] int64."""
        numbers, start = [], 0
        for rows, column in zip(self._rows, batch.columns, strict=True):
            numbers.append(start + torch.searchsorted(rows, column))
            start += rows.numel()
        return torch.stack(numbers, dim=1)
