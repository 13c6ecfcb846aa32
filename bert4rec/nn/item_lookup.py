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
        lookups: None until row updates are switched on; then the gradients of the rows come from
            here, and the table must not require one.
    """

    def __init__(self) -> None:
        self.lookups: RowLookups | None = None

    def __call__(self, table: Tensor, rows: Tensor) -> Tensor:
        """Maps [L] int64 row numbers to [L, D] vectors of `table`.

        `table` is [R, D].
        """
        if self.lookups is None or not torch.is_grad_enabled():
            return F.embedding(rows, table)
        anchor = self.lookups.anchor(rows, table.shape[1], table.dtype)
        return ops.embedding_gather(table, rows, table.dtype, anchor=anchor)
