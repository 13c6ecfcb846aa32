# SPDX-License-Identifier: Apache-2.0
"""Looks up rows of an item table, with dense or row gradients."""

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
