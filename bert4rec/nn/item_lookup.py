# SPDX-License-Identifier: Apache-2.0
"""Looks up rows of an item table, with dense or row gradients."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cuda_ext import ops
from recsys.train.optimizers.rows import RowLookups


class ItemLookup:
    """Looks up rows of one table.

    Attributes:
        lookups: collects row gradients of a table that itself requires none; None gives the
            table a dense gradient.
    """

    def __init__(self) -> None:
        self.lookups: RowLookups | None = None

    def __call__(self, table: Tensor, rows: Tensor) -> Tensor:
        """Maps [L] int64 row numbers to [L, D] rows of `table`."""
        if self.lookups is None or not torch.is_grad_enabled():
            return F.embedding(rows, table)
        anchor = self.lookups.anchor(rows, table.shape[1], table.dtype)
        return ops.embedding_gather(table, rows, table.dtype, anchor=anchor)


def lookup_before_head(table: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Looks up rows of the table that a tied head uses.

    The head must use the returned table: its gradient then takes up that of the lookup. Otherwise
    autograd would make two gradients of the table's size, and add them.

    Args:
        table: [R, D].
        rows: [L] int64 row numbers.

    Returns:
        ([L, D] rows of the table, the table itself).
    """
    if not torch.is_grad_enabled():
        return F.embedding(rows, table), table
    vectors, whole = _LookupBeforeHead.apply(table, rows)  # type: ignore[no-untyped-call]
    return vectors, whole


class _LookupBeforeHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(rows)
        return F.embedding(rows, table), table.detach()

    @staticmethod
    def backward(ctx: Any, to_vectors: Tensor, to_table: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        # Nothing else holds this gradient: the head made it for us.
        return to_table.index_add_(0, rows, to_vectors.to(to_table.dtype)), None
