# SPDX-License-Identifier: Apache-2.0
"""Item tables: their lookups, embeddings of tokens, and the output layer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.config import ModelConfig
from bert4rec.nn.adapter import LowRank
from bert4rec.nn.dropout import Dropout
from bert4rec.nn.layout import SequenceLayout
from cuda_ext import ops
from recsys.train.optimizers.rows import RowLookups


class ItemLookup:
    """Looks up rows of one table.

    Attributes:
        lookups: collects row gradients of a table that does not require a gradient itself; None
            gives the table a dense gradient.
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

    The head must use the returned table, so that the lookup's gradient is added to the head's in
    place. Otherwise autograd would make two gradients of the table's size and add them.

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
        # Nothing else uses this gradient, which the head has just computed: add in place.
        return to_table.index_add_(0, rows, to_vectors.to(to_table.dtype)), None


class TokenEmbedding(nn.Module):
    """Adds up the embeddings of an item and its position.

    Args:
        config: settings of the network.
        num_items: I; the table also has rows 0 (padding) and I + 1 (the mask item).

    Attributes:
        items: [I + 2, D] item embeddings.
        positions: [max_len, D] position embeddings.
        lookup: looks up rows of `items`.
    """

    def __init__(self, config: ModelConfig, num_items: int) -> None:
        super().__init__()
        dim = config.emb_dim
        self.max_len = config.max_len
        self.from_end = config.positions_from == "end"
        self.items = nn.Parameter(torch.empty(num_items + 2, dim))
        self.lookup = ItemLookup()
        self.positions = nn.Parameter(torch.empty(config.max_len, dim))
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, items: Tensor, layout: SequenceLayout, vectors: Tensor | None = None
    ) -> Tensor:
        """Embeds tokens.

        Args:
            items: [N] int64 in [0, I + 1].
            layout: offsets of the sequences in `items`, none longer than max_len.
            vectors: [N, D] embeddings of `items`; None looks them up.

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


class ItemHead(nn.Module):
    """Vectors and biases that score items against hidden vectors.

    Args:
        config: settings of the network.
        num_items: I.

    Attributes:
        weight: [I, D] vectors of the items; None if tied.
        bias: [I] biases of the items.
        lookup, bias_lookup: lookups of rows in `weight` (or the embedding table) and in `bias`.
    """

    def __init__(self, config: ModelConfig, num_items: int) -> None:
        super().__init__()
        dim = config.emb_dim
        self.temperature = config.temperature
        is_tied = config.head == "tied"
        self.weight = None if is_tied else nn.Parameter(torch.empty(num_items, dim))
        self.bias = nn.Parameter(torch.empty(num_items))
        self.lookup = ItemLookup()
        self.bias_lookup = ItemLookup()
        self.transform = nn.Linear(dim, dim) if config.head_transform else None
        self.norm = nn.LayerNorm(dim) if config.head_transform else None

    def project(
        self, hidden: Tensor, adapter: LowRank | None = None, gate: Tensor | None = None
    ) -> Tensor:
        """Maps [M, D] to the vectors that are multiplied by item vectors.

        Args:
            hidden: [M, D] output of the blocks.
            adapter: change of the linear layer; None leaves it unchanged.
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
        """Maps [L, D] item vectors to those that scores are computed with."""
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
