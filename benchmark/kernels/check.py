# SPDX-License-Identifier: Apache-2.0
"""Checks the results of benchmark candidates before they are timed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmark.kernels.tables import IdBatch, Tables
from cuda_ext.error_bounds import Bounded


def check_error(case: str, result: Tensor, bound: Bounded) -> None:
    """Checks that a result's error is within its rounding bound.

    Args:
        case: name for the error message.
        result: float32 result of an implementation.
        bound: exact values and bounds of their errors.

    Raises:
        ArithmeticError: the error of an element is larger.
    """
    excess = bound.excess(result)
    if excess > 1:
        raise ArithmeticError(f"{case}: an error is {excess:.3g} times what rounding can make")


class TouchedRows:
    """The rows that some batches look up, to check them in float64.

    Args:
        batches: batches of ids.
    """

    def __init__(self, batches: Sequence[IdBatch]) -> None:
        columns = [torch.cat(column) for column in zip(*(b.columns for b in batches), strict=True)]
        self._rows = [torch.unique(column) for column in columns]

    def of(self, tables: Tables) -> Tensor:
        """Copies the looked-up rows of all tables: [looked-up rows, D]."""
        return torch.cat([t[rows] for t, rows in zip(tables.tables(), self._rows, strict=True)])

    def numbers(self, batch: IdBatch) -> Tensor:
        """Returns the number of each id among these rows: [B, F] int64."""
        numbers, start = [], 0
        for rows, column in zip(self._rows, batch.columns, strict=True):
            numbers.append(start + torch.searchsorted(rows, column))
            start += rows.numel()
        return torch.stack(numbers, dim=1)
