# SPDX-License-Identifier: Apache-2.0
"""From hidden vectors to scores of items.

Letters: M targets, D columns, I items.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.nn.item_lookup import ItemLookup


class ItemHead(nn.Module):
    """Compares hidden vectors with items, to score them.

    Args:
        dim: D.
        num_items: I.
        tied: take the vectors of the items from the embedding table; otherwise they are of the
            head's own.
        transform: a linear layer, GELU and normalisation before the comparison.

    Attributes:
        weight: [I, D], None where tied.
        bias: [I].
        lookup, bias_lookup: how rows of the two are read.
    """

    def __init__(self, dim: int, num_items: int, tied: bool, transform: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(num_items, dim))
        self.bias = nn.Parameter(torch.empty(num_items))
        self.lookup = ItemLookup()
        self.bias_lookup = ItemLookup()
        self.transform = nn.Linear(dim, dim) if transform else None
        self.norm = nn.LayerNorm(dim) if transform else None

    def query(self, hidden: Tensor) -> Tensor:
        """Maps [M, D] to the vectors that are multiplied with items."""
        if self.transform is None or self.norm is None:
            return hidden
        query: Tensor = self.norm(F.gelu(self.transform(hidden)))
        return query

    def item_vectors(self, table: Tensor) -> Tensor:
        """Returns [I, D]: row i scores item i + 1.

        Args:
            table: [I + 2, D], the embedding table.
        """
        return table[1:-1] if self.weight is None else self.weight

    def bias_of(self, rows: Tensor) -> Tensor:
        """Maps [K] int64 rows, from 0, to [K] biases."""
        return self.bias_lookup(self.bias.unsqueeze(1), rows).squeeze(1)
