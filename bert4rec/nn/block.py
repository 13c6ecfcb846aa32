# SPDX-License-Identifier: Apache-2.0
"""A transformer block that computes all packed tokens, or only some of them."""

from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.config import Activation, ModelConfig
from bert4rec.nn.adapter import BlockAdapters, adapted_linear
from bert4rec.nn.attention import attend
from bert4rec.nn.dropout import Dropout
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import TargetTokens
from cuda_ext import ops


class Block(nn.Module):
    """Attention and a feed-forward network, with residuals and norms.

    Args:
        config: settings of the network.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim, hidden_dim = config.emb_dim, config.hidden_dim
        self.num_heads = config.nhead
        self.pre_norm = config.norm == "pre"
        self.attention_dropout = config.attention_dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.expand = nn.Linear(dim, config.expanded_dim)
        self.contract = nn.Linear(hidden_dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(config.dropout)
        self._activation: Activation = config.activation

    def forward(
        self,
        tokens: Tensor,
        layout: SequenceLayout,
        *,
        targets: TargetTokens | None = None,
        causal: bool = False,
        adapters: BlockAdapters | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        """Applies the block to tokens.

        Args:
            tokens: [N, D] packed by `layout`.
            layout: offsets of the sequences in `tokens`.
            targets: compute the output only of these tokens, with keys and values of all tokens;
                None computes all tokens.
            causal: no token attends to a later one.
            adapters: changes of the four linear layers; None leaves them unchanged.
            gate: [N, r] factors of the adapters; None for 1.

        Returns:
            [N, D], or [M, D] with `targets`.
        """
        source = self.attention_norm(tokens) if self.pre_norm else tokens
        kept = tokens if targets is None else tokens.index_select(0, targets.index)
        attended = self._attend(source, layout, targets, causal, adapters, gate)
        if gate is not None and targets is not None:
            gate = gate.index_select(0, targets.index)
        adapter = None if adapters is None else adapters.attention_out
        mixed = self.dropout(adapted_linear(attended, self.attention_out, adapter, gate))
        kept = kept + mixed
        if not self.pre_norm:
            kept = self.attention_norm(kept)
        source = self.feed_forward_norm(kept) if self.pre_norm else kept
        output: Tensor = kept + self._feed_forward(source, adapters, gate)
        return output if self.pre_norm else self.feed_forward_norm(output)

    def _feed_forward(
        self, tokens: Tensor, adapters: BlockAdapters | None, gate: Tensor | None
    ) -> Tensor:
        expand, contract = (
            (None, None) if adapters is None else (adapters.expand, adapters.contract)
        )
        between = adapted_linear(tokens, self.expand, expand, gate)
        mapped = adapted_linear(activate(between, self._activation), self.contract, contract, gate)
        output: Tensor = self.dropout(mapped)
        return output

    def _attend(
        self,
        source: Tensor,
        layout: SequenceLayout,
        targets: TargetTokens | None,
        causal: bool,
        adapters: BlockAdapters | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        dim = source.shape[1]
        weight, bias = self.qkv.weight, self.qkv.bias
        queries, query_layout, positions = None, layout, None
        if targets is None:
            fused = ops.linear(source, weight, bias)
        else:
            query_layout, positions = targets.layout, targets.positions
            chosen = source.index_select(0, targets.index)
            queries = ops.linear(chosen, weight[:dim], bias[:dim])
            fused = ops.linear(source, weight[dim:], bias[dim:])
        if adapters is not None:
            reduced = adapters.qkv.reduce(source, gate)
            if queries is None or targets is None:
                fused = adapters.qkv.add_to(fused, reduced)
            else:
                of_queries = reduced.index_select(0, targets.index)
                queries = adapters.qkv.add_to(queries, of_queries, slice(dim))
                fused = adapters.qkv.add_to(fused, reduced, slice(dim, None))
        return attend(
            queries,
            fused,
            query_layout,
            layout,
            self.num_heads,
            query_positions=positions,
            causal=causal,
            dropout_probability=self.attention_dropout if self.training else 0.0,
        )


def activate(between: Tensor, activation: Activation) -> Tensor:
    """Applies an activation function; `swiglu` halves the columns."""
    if activation == "swiglu":
        # Source: Shazeer 2020 (arXiv:2002.05202).
        gate, value = between.chunk(2, dim=1)
        return F.silu(gate) * value
    return F.gelu(between) if activation == "gelu" else F.relu(between)
