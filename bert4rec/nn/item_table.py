# SPDX-License-Identifier: Apache-2.0
"""Item and position embeddings of packed tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.config import PositionsFrom
from bert4rec.nn.dropout import Dropout
from bert4rec.nn.item_lookup import ItemLookup
from bert4rec.nn.layout import SequenceLayout


class TokenEmbedding(nn.Module):
    """Sums an embedding of the item and one of its position.

    Args:
        num_items: I; the table also has rows 0 (padding) and I + 1 (the mask item).
        dim: D.
        max_len: number of positions.
        positions_from: count positions from the end of a sequence, as left padding does, or from
            its start.
        dropout: dropout probability of the result.

    Attributes:
        items: [I + 2, D] item embeddings.
        positions: [max_len, D] position embeddings.
        lookup: looks up rows of `items`.
    """

    def __init__(
        self,
        num_items: int,
        dim: int,
        max_len: int,
        positions_from: PositionsFrom,
        dropout: float,
    ) -> None:
        super().__init__()
        self.max_len = max_len
        self.from_end = positions_from == "end"
        self.items = nn.Parameter(torch.empty(num_items + 2, dim))
        self.lookup = ItemLookup()
        self.positions = nn.Parameter(torch.empty(max_len, dim))
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, items: Tensor, layout: SequenceLayout, vectors: Tensor | None = None
    ) -> Tensor:
        """Embeds tokens.

        Args:
            items: [N] int64 in [0, I + 1].
            layout: offsets of the sequences in `items`, none longer than max_len.
            vectors: [N, D] embeddings of `items`, if they were looked up already.

        Returns:
            [N, D].
        """
        positions = layout.position_of_token()
        if self.from_end:
            positions = positions + (self.max_len - layout.lengths())[layout.sequence_of_token()]
        if vectors is None:
            vectors = self.lookup(self.items, items)
        output: Tensor = self.dropout(self.norm(vectors + F.embedding(positions, self.positions)))
        return output
