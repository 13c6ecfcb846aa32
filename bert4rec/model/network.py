# SPDX-License-Identifier: Apache-2.0
"""The BERT4Rec network and its item tables.

Source: Sun et al. 2019 (arXiv:1904.06690).
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from bert4rec.config import ModelConfig
from bert4rec.nn.block import Block, Targets
from bert4rec.nn.item_head import ItemHead
from bert4rec.nn.item_lookup import ItemLookup
from bert4rec.nn.item_table import TokenEmbedding
from bert4rec.nn.layout import SequenceLayout
from recsys.train.optimizers.rows import RowGradients, RowLookups, StoredTable


class Bert4Rec(nn.Module):
    """Embedding, transformer blocks and the head that scores items.

    Args:
        config: sizes and kinds of the parts.
        num_items: items of the catalogue, I.

    Attributes:
        embedding, blocks, final_norm, head: the parts.
    """

    def __init__(self, config: ModelConfig, num_items: int) -> None:
        super().__init__()
        self.num_items = num_items
        self.max_len = config.max_len
        dim = config.emb_dim
        self.embedding = TokenEmbedding(
            num_items,
            dim,
            config.max_len,
            config.positions_from,
            config.embedding_norm,
            config.dropout,
        )
        self.blocks = nn.ModuleList(
            Block(
                dim,
                config.nhead,
                config.ffn_dim or 4 * dim,
                config.activation,
                config.norm,
                config.dropout,
                config.attention_dropout,
            )
            for _ in range(config.num_layers)
        )
        self.final_norm = nn.LayerNorm(dim) if config.norm == "pre" else nn.Identity()
        self.head = ItemHead(dim, num_items, config.head == "tied", config.head_transform)
        self.reset_parameters(config.init_std)

    @torch.no_grad()
    def reset_parameters(self, std: float) -> None:
        """Draws weights from N(0, std), biases 0, norms 1.

        Source: Devlin et al. 2018 (BERT), which draws from a truncated normal; tails past two
        deviations are rare enough to make no difference here.
        """
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                module.weight.normal_(0, std)
                module.bias.zero_()
        self.embedding.items.normal_(0, std)
        self.embedding.positions.normal_(0, std)
        if self.head.weight is not None:
            self.head.weight.normal_(0, std)
        self.head.bias.zero_()

    def forward(
        self,
        items: Tensor,
        layout: SequenceLayout,
        targets: Targets,
        *,
        causal: bool = False,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Gives what the head compares with the items, at the targets alone.

        Args:
            items: [N] int64, packed sequences.
            layout: of the items.
            targets: M of the tokens.
            causal: let no token see a later one.
            vectors: [N, D], embeddings of the items where they were looked up already.

        Returns:
            [M, D]. The last block computes queries and its feed-forward part at the targets only.
        """
        tokens = self.embedding(items, layout, vectors)
        last = len(self.blocks) - 1 if targets.layout is not layout else None
        for i, block in enumerate(self.blocks):
            tokens = block(tokens, layout, targets=targets if i == last else None, causal=causal)
        return self.head.query(self.final_norm(tokens))

    def item_vectors(self) -> Tensor:
        """Returns [I, D]: row i scores item i + 1."""
        return self.head.item_vectors(self.embedding.items)

    def vectors_of(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Looks up what scores some items.

        Args:
            items: [K] int64, item numbers from 1.

        Returns:
            ([K, D] vectors, [K] biases).
        """
        head = self.head
        if head.weight is None:
            vectors = self.embedding.lookup(self.embedding.items, items)
        else:
            vectors = head.lookup(head.weight, items - 1)
        return vectors, head.bias_of(items - 1)


class ItemRows:
    """Takes item tables out of autograd and collects row gradients.

    Args:
        model: changed: the tables require no gradient any more.
        wanted: `embedding`, `head` (nothing where it is tied) and `bias`, or some of them.

    Attributes:
        names: of the tables.
        dims: columns of each.
    """

    def __init__(self, model: Bert4Rec, wanted: Collection[str]) -> None:
        tables: dict[str, tuple[nn.Parameter | None, ItemLookup]] = {
            "embedding": (model.embedding.items, model.embedding.lookup),
            "head": (model.head.weight, model.head.lookup),
            "bias": (model.head.bias, model.head.bias_lookup),
        }
        chosen = {
            name: (parameter, lookup)
            for name, (parameter, lookup) in tables.items()
            if name in wanted and parameter is not None
        }
        self.names = list(chosen)
        self._parameters = [parameter for parameter, _ in chosen.values()]
        self.dims = [parameter[0].numel() for parameter in self._parameters]
        self._lookups = [RowLookups() for _ in chosen]
        for (parameter, lookup), lookups in zip(chosen.values(), self._lookups, strict=True):
            parameter.requires_grad_(False)
            lookup.lookups = lookups

    def stored_tables(self) -> list[StoredTable]:
        """Returns the tables; the bias is one with a single column."""
        return [StoredTable(p.detach().view(p.shape[0], -1)) for p in self._parameters]

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients that backward left, and forgets them."""
        return [
            gradients for i, lookups in enumerate(self._lookups) for gradients in lookups.take(i)
        ]
