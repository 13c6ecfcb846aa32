# SPDX-License-Identifier: Apache-2.0
"""Whether the candidates of a kernel benchmark compute the same, before they are timed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmark.micro.kernels_tables import IdBatch, Tables

Found = tuple[Tensor, Tensor]
"""A result, and the truth in float64."""


def check_error(case: str, ours: Found, other: Found) -> None:
    """Checks that our result is as near to the truth as that of another implementation.

    Args:
        case: for the message.
        ours: our result and its truth.
        other: that of another implementation in the same dtype, and its truth.

    Raises:
        ArithmeticError: our largest error is over twice the other's, and over one unit in the
            last place of the largest value.
    """
    error, allowed = ((found.double() - truth).abs().max().item() for found, truth in (ours, other))
    unit = torch.finfo(ours[0].dtype).eps * ours[1].abs().max().item()
    if not error <= 2 * allowed + unit:
        raise ArithmeticError(
            f"{case}: our largest error is {error:.3g}, that of the other {allowed:.3g}"
        )


class TouchedRows:
    """The rows that some batches look up: few enough to keep them in float64.

    Args:
        batches: what is looked up.
    """

    def __init__(self, batches: Sequence[IdBatch]) -> None:
        columns = [torch.cat(column) for column in zip(*(b.columns for b in batches), strict=True)]
        self._rows = [torch.unique(column) for column in columns]

    def of(self, tables: Tables) -> Tensor:
        """Returns a copy of the rows of all tables, one after the other: [U, D]."""
        return torch.cat([t[rows] for t, rows in zip(tables.tables(), self._rows, strict=True)])

    def numbers(self, batch: IdBatch) -> Tensor:
        """Returns which of these rows each id of a batch is: [B, F] int64."""
        found, start = [], 0
        for rows, column in zip(self._rows, batch.columns, strict=True):
            found.append(start + torch.searchsorted(rows, column))
            start += rows.numel()
        return torch.stack(found, dim=1)
