# SPDX-License-Identifier: Apache-2.0
"""The BERT4Rec network and its item tables.

Source: Sun et al. 2019 (arXiv:1904.06690).
"""

import functools
from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bert4rec.config import AdapterConfig, ModelConfig
from bert4rec.nn.adapter import Adapters
from bert4rec.nn.block import Block
from bert4rec.nn.items import ItemHead, ItemLookup, TokenEmbedding
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import TargetTokens
from bert4rec.rules import mask_item
from recsys.train.optimizers.rows import RowGradients, RowLookups

NO_ADAPTER = AdapterConfig()
"""Settings of a network without adapters."""
_HIDDEN_SCORE = -1e9
_ITEM_LENGTH = 0.5
"""Length of item vectors that `set_items` sets."""
ADAPTERS = "adapters."
"""Prefix of the names of the adapters' parameters."""


class Bert4Rec(nn.Module):
    """Embedding, transformer blocks and the head that scores items.

    Args:
        config: settings of the network.
        num_items: I.
        adapter: settings of its adapters; with any, all other parameters are frozen.

    Attributes:
        activation_checkpointing: store only the blocks' inputs in training, and recompute each
            block in backward.
        adapters: low-rank changes of the linear layers; None without adapters.
        name: name of the model in checkpoints and deployments.
    """

    name = "bert4rec"

    def __init__(
        self, config: ModelConfig, num_items: int, adapter: AdapterConfig = NO_ADAPTER
    ) -> None:
        super().__init__()
        self.num_items = num_items
        self.max_len = config.max_len
        self.activation_checkpointing = False
        self.embedding = TokenEmbedding(config, num_items)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        has_final_norm = config.norm == "pre"
        self.final_norm = nn.LayerNorm(config.emb_dim) if has_final_norm else nn.Identity()
        self.head = ItemHead(config, num_items)
        self.reset_parameters()
        self.adapters: Adapters | None = None
        if adapter.adapter != "none":
            self.requires_grad_(False)
            self.adapters = Adapters(config, adapter)

    @torch.no_grad()
    def reset_parameters(self, std: float = 0.02) -> None:
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

    @torch.no_grad()
    def set_items(self, vectors: Tensor) -> None:
        """Sets the directions of the item vectors before training.

        Args:
            vectors: [I, D] of length 1; an item whose vector is zero keeps its present one.
        """
        known = vectors.any(1)
        for table in (self.embedding.items[1:-1], self.head.weight):
            if table is not None:
                table[known.to(table.device)] = _ITEM_LENGTH * vectors[known].to(table.device)

    @torch.no_grad()
    def hide_items(self, known: int) -> None:
        """Gives all items but the first `known` no vector, and a score below all others."""
        for table in (self.embedding.items[1:-1], self.head.weight):
            if table is not None:
                table[known:] = 0
        self.head.bias[known:] = _HIDDEN_SCORE

    def forward(
        self,
        items: Tensor,
        layout: SequenceLayout,
        targets: TargetTokens,
        *,
        causal: bool = False,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Computes the vectors at the targets that are multiplied by item vectors to score items.

        Args:
            items: [N] int64 packed item numbers.
            layout: offsets of the sequences in `items`.
            targets: positions of the M targets.
            causal: no token attends to a later one.
            vectors: [N, D] embeddings of `items`; None looks them up.

        Returns:
            [M, D]. The last block computes queries and its feed-forward network at targets only.
        """
        tokens = self.embedding(items, layout, vectors)
        last = len(self.blocks) - 1 if targets.layout is not layout else None
        adapters, gate, transform = self.adapters, None, None
        changes: Iterable[nn.Module | None] = [None] * len(self.blocks)
        if adapters is not None:
            gate = self._gate(adapters, items, layout, causal)
            changes, transform = adapters.blocks, adapters.transform
        for i, (block, of_block) in enumerate(zip(self.blocks, changes, strict=True)):
            chosen = targets if i == last else None
            run = functools.partial(
                block, targets=chosen, causal=causal, adapters=of_block, gate=gate
            )
            if self.activation_checkpointing and self.training:
                # Dropout draws the same again: `checkpoint` restores the random generators.
                tokens = checkpoint(run, tokens, layout, use_reentrant=False)
            else:
                tokens = run(tokens, layout)
        if gate is not None and last is not None:
            gate = gate.index_select(0, targets.index)
        return self.head.project(self.final_norm(tokens), transform, gate)

    def _gate(
        self, adapters: Adapters, items: Tensor, layout: SequenceLayout, causal: bool
    ) -> Tensor | None:
        if adapters.gate is None:
            return None
        vectors = F.embedding(items, self.embedding.items)
        is_item = (items > 0) & (items < mask_item(self.num_items))
        gate: Tensor = adapters.gate(vectors, is_item, layout, causal=causal)
        return gate

    def item_vectors(self) -> Tensor:
        """Returns [I, D] item vectors; row i is item i + 1."""
        return self.head.item_vectors(self.embedding.items)

    def vectors_of(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Looks up the vectors and biases that score some items.

        Args:
            items: [L] int64 item numbers, from 1.

        Returns:
            ([L, D] vectors, [L] biases).
        """
        head = self.head
        if head.weight is None:
            vectors = self.embedding.lookup(self.embedding.items, items)
        else:
            vectors = head.lookup(head.weight, items - 1)
        return head.scored(vectors), head.bias_of(items - 1)


class ItemRows:
    """Takes item tables out of autograd and collects row gradients.

    Args:
        model: network to change: its chosen tables no longer require a gradient.
        tables: names among `embedding`, `head` (ignored if it is tied) and `bias`.

    Attributes:
        names: names of the chosen tables.
        parameters: parameter of each table.
        dims: columns of each table.
    """

    def __init__(self, model: Bert4Rec, tables: Collection[str]) -> None:
        all_tables: dict[str, tuple[nn.Parameter | None, ItemLookup]] = {
            "embedding": (model.embedding.items, model.embedding.lookup),
            "head": (model.head.weight, model.head.lookup),
            "bias": (model.head.bias, model.head.bias_lookup),
        }
        chosen = {
            name: (parameter, lookup)
            for name, (parameter, lookup) in all_tables.items()
            if name in tables and parameter is not None
        }
        self.names = list(chosen)
        self.parameters = [parameter for parameter, _ in chosen.values()]
        self.dims = [parameter[0].numel() for parameter in self.parameters]
        self._lookups = [RowLookups() for _ in chosen]
        for (parameter, lookup), lookups in zip(chosen.values(), self._lookups, strict=True):
            parameter.requires_grad_(False)
            lookup.lookups = lookups

    def stored_tables(self) -> list[Tensor]:
        """Returns the tables; the bias is a table of one column."""
        return [p.detach().view(p.shape[0], -1) for p in self.parameters]

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients of the last backward, and clears them."""
        return [
            gradients for i, lookups in enumerate(self._lookups) for gradients in lookups.take(i)
        ]
