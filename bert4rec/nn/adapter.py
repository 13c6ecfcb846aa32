# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of frozen linear layers, and the gate of their experts.

A layer W becomes W + s B A, with A [r, in] and B [out, r] (LoRA, Hu et al. 2021,
arXiv:2106.09685). In the instance-wise variant (iLoRA, Kong et al. 2024, arXiv:2408.10159), the r
columns are divided among K experts, which are weighted by the history: W + s sum_k w_k B_k A_k.
This is the same product with a factor per token and column between A and B.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert4rec.config import EXPERTS, AdapterConfig, ModelConfig
from bert4rec.nn.layout import SequenceLayout
from cuda_ext import ops

_EPSILON = 1e-12
"""Epsilon of the normalisation of a mean embedding, whose squared columns are about 1e-4."""


class LowRank(nn.Module):
    """A trainable low-rank change of a linear layer.

    Args:
        inputs: columns of the layer's inputs.
        outputs: columns of its outputs.
        config: settings of the adapters.

    Attributes:
        a: [r, inputs].
        b: [outputs, r]; zero at the start, so the layer starts unchanged.
    """

    def __init__(self, inputs: int, outputs: int, config: AdapterConfig) -> None:
        super().__init__()
        self.scale = config.scale
        self.a = nn.Parameter(torch.empty(config.adapter_rank, inputs))
        self.b = nn.Parameter(torch.zeros(outputs, config.adapter_rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)  # as torch.nn.Linear draws its weight

    def reduce(self, tokens: Tensor, gate: Tensor | None) -> Tensor:
        """Maps [N, inputs] to [N, r].

        Args:
            tokens: [N, inputs].
            gate: [N, r] factors; None for 1.
        """
        reduced = ops.linear(tokens, self.a)
        return reduced if gate is None else reduced * gate

    def add_to(self, output: Tensor, reduced: Tensor, rows: slice = slice(None)) -> Tensor:
        """Adds the change to the frozen layer's output.

        Args:
            output: [N, outputs], or only the columns that `rows` selects.
            reduced: [N, r] result of `reduce`.
            rows: rows of the layer's weight that `output` was computed with.
        """
        return torch.addmm(output, reduced, self.b[rows].t(), alpha=self.scale)


def adapted_linear(
    tokens: Tensor, layer: nn.Linear, adapter: LowRank | None, gate: Tensor | None
) -> Tensor:
    """Applies a linear layer and its adapter; returns [N, outputs].

    Args:
        tokens: [N, inputs].
        layer: the frozen layer.
        adapter: its change; None applies only the layer.
        gate: [N, r] factors; None for 1.
    """
    output = ops.linear(tokens, layer.weight, layer.bias)
    return output if adapter is None else adapter.add_to(output, adapter.reduce(tokens, gate))


class BlockAdapters(nn.Module):
    """The adapters of a transformer block, under the names of its layers.

    Args:
        model: settings of the network.
        config: settings of the adapters.
    """

    def __init__(self, model: ModelConfig, config: AdapterConfig) -> None:
        super().__init__()
        dim = model.emb_dim
        self.qkv = LowRank(dim, 3 * dim, config)
        self.attention_out = LowRank(dim, dim, config)
        self.expand = LowRank(dim, model.expanded_dim, config)
        self.contract = LowRank(model.hidden_dim, dim, config)


class Gate(nn.Module):
    """Computes the weights of the experts from the items of a history.

    The weights are softmax(W z), with z the mean of the frozen embeddings of the items, scaled to
    unit variance; the mask item does not count. Unscaled embeddings are so small that all
    histories would get equal weights. In a causal model, the weights of a token depend only on the
    history up to that token; otherwise the gate would see the items that are to be predicted.

    Args:
        dim: D.
        config: settings of the adapters.

    Attributes:
        weight: [experts, D], W.
    """

    def __init__(self, dim: int, config: AdapterConfig) -> None:
        super().__init__()
        self.columns = config.adapter_rank // EXPERTS
        self.weight = nn.Parameter(torch.empty(EXPERTS, dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(
        self, vectors: Tensor, is_item: Tensor, layout: SequenceLayout, *, causal: bool
    ) -> Tensor:
        """Computes the factor of each token and column.

        Args:
            vectors: [N, D] embeddings of the tokens.
            is_item: [N] bool, False for the mask item and padding.
            layout: offsets of the sequences.
            causal: use no tokens after each token.

        Returns:
            [N, r]; equal within the columns of an expert.
        """
        counted = is_item.unsqueeze(1).to(vectors.dtype)
        summands = layout.padded(torch.cat([vectors * counted, counted], dim=1))
        sums = layout.packed(summands.cumsum(1)) if causal else summands.sum(1)
        mean = sums[:, :-1] / sums[:, -1:].clamp(min=1)
        z = F.layer_norm(mean, mean.shape[1:], eps=_EPSILON)
        weights = F.linear(z, self.weight).to(self.weight.dtype).softmax(1)
        if not causal:
            weights = weights[layout.sequence_of_token()]
        return weights.unsqueeze(2).expand(-1, -1, self.columns).flatten(1)


class Adapters(nn.Module):
    """The adapters of a network, under the names of its layers.

    Args:
        model: settings of the network.
        config: settings of the adapters.

    Attributes:
        gate: gate of the experts; None without experts.
    """

    def __init__(self, model: ModelConfig, config: AdapterConfig) -> None:
        super().__init__()
        dim = model.emb_dim
        self.blocks = nn.ModuleList(BlockAdapters(model, config) for _ in range(model.num_layers))
        head = {"transform": LowRank(dim, dim, config)} if model.head_transform else {}
        self.head = nn.ModuleDict(head)
        self.gate = Gate(dim, config) if config.adapter == "ilora" else None

    @property
    def transform(self) -> LowRank | None:
        """Adapter of the head's linear layer; None without one."""
        layer = dict(self.head.items()).get("transform")
        assert layer is None or isinstance(layer, LowRank)
        return layer
