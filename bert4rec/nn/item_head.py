# SPDX-License-Identifier: Apache-2.0
"""The output layer: hidden vectors to scores of items."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.nn.adapter import LowRank
from bert4rec.nn.item_lookup import ItemLookup


class ItemHead(nn.Module):
    """Vectors and biases that score items against hidden vectors.

    Args:
        dim: D.
        num_items: I.
        tied: use the embedding table as vectors of the items, in place of a table of the head.
        transform: apply a linear layer, GELU and normalisation to hidden vectors first.
        temperature: divisor of the cosine of hidden and item vectors; None multiplies the vectors
            as they are.

    Attributes:
        weight: [I, D] vectors of the items; None if tied.
        bias: [I] biases of the items.
        lookup, bias_lookup: lookups of rows in `weight` (or the embedding table) and in `bias`.
    """

    def __init__(
        self,
        dim: int,
        num_items: int,
        tied: bool,
        transform: bool,
        temperature: float | None = None,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.weight = None if tied else nn.Parameter(torch.empty(num_items, dim))
        self.bias = nn.Parameter(torch.empty(num_items))
        self.lookup = ItemLookup()
        self.bias_lookup = ItemLookup()
        self.transform = nn.Linear(dim, dim) if transform else None
        self.norm = nn.LayerNorm(dim) if transform else None

    def project(
        self, hidden: Tensor, adapter: LowRank | None = None, gate: Tensor | None = None
    ) -> Tensor:
        """Maps [M, D] to the vectors that are multiplied with item vectors.

        Args:
            hidden: [M, D] output of the blocks.
            adapter: change of the linear layer; None for none.
            gate: [M, r] factors of the adapter; None for 1.
        """
        if self.transform is not None and self.norm is not None:
            mapped = self.transform(hidden)
            if adapter is not None:
                mapped = adapter.add_to(mapped, adapter.reduce(hidden, gate))
            hidden = self.norm(F.gelu(mapped))
        if self.temperature is None:
            return hidden
        return F.normalize(hidden, dim=1) / self.temperature

    def scored(self, vectors: Tensor) -> Tensor:
        """Maps [L, D] item vectors to those that are scored."""
        return vectors if self.temperature is None else F.normalize(vectors, dim=1)

    def item_vectors(self, table: Tensor) -> Tensor:
        """Returns [I, D] item vectors; row i is item i + 1.

        Args:
            table: [I + 2, D] embedding table.
        """
        return self.scored(table[1:-1] if self.weight is None else self.weight)

    def bias_of(self, rows: Tensor) -> Tensor:
        """Maps [L] int64 rows, from 0, to [L] biases."""
        return self.bias_lookup(self.bias.unsqueeze(1), rows).squeeze(1)
