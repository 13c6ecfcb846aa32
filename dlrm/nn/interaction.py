# SPDX-License-Identifier: Apache-2.0
"""Interactions of the bottom MLP's output and the embeddings.

Each maps the bottom MLP's output [B, D] and the looked-up vectors [B, F, D], or None without
tables, to [B, out_features].
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from cuda_ext import ops, reference
from dlrm.nn.mlp import init_linear
from dlrm.nn.shards import linear_in_shards


class DotOp(Protocol):
    """Signature of `ops.dot_interaction` and its reference."""

    def __call__(self, features: Tensor, bottom: Tensor | None = None) -> Tensor:
        """Maps [B, F, D] and [B, D] to [B, width]."""


def _concatenated(bottom: Tensor, vectors: Tensor | None) -> Tensor:
    """Concatenates the vectors of each sample: [B, (F + 1) * D]."""
    return bottom if vectors is None else torch.cat([bottom, vectors.flatten(1)], dim=1)


class Interaction(nn.Module):
    """Combines the bottom MLP's output with the looked-up vectors.

    `forward` takes both; the vectors are None without tables.

    Attributes:
        out_features: columns of the result.
        num_padding: columns at the end of the result that are always zero.
    """

    out_features: int
    num_padding: int = 0


class DotInteraction(Interaction):
    """Concatenates the bottom MLP's output and the pairwise dot products of the vectors.

    Args:
        num_vectors: F + 1, including the bottom MLP's output.
        embedding_dim: D.
        op: the extension's op, or its definition in plain PyTorch.
    """

    def __init__(self, num_vectors: int, embedding_dim: int, op: DotOp) -> None:
        super().__init__()
        self.out_features = reference.interaction_width(num_vectors, embedding_dim)
        self.num_padding = self.out_features - (
            embedding_dim + num_vectors * (num_vectors - 1) // 2
        )
        self._op = op

    def forward(self, bottom: Tensor, vectors: Tensor | None) -> Tensor:
        """Returns [B, out_features]: bottom | dot products | zeros."""
        if vectors is None:
            return self._op(bottom.unsqueeze(1))
        return self._op(vectors, bottom)


class CatInteraction(Interaction):
    """Concatenates the vectors.

    Args:
        num_vectors: F + 1, including the bottom MLP's output.
        embedding_dim: D.
    """

    def __init__(self, num_vectors: int, embedding_dim: int) -> None:
        super().__init__()
        self.out_features = num_vectors * embedding_dim

    def forward(self, bottom: Tensor, vectors: Tensor | None) -> Tensor:
        """Returns [B, (F + 1) * D]."""
        return _concatenated(bottom, vectors)


DCN_LAYERS = 3
"""Cross layers of MLPerf's DLRM-DCNv2."""


class LowRankCross(Interaction):
    """Low-rank cross layers: x <- x0*(W(Vx) + b) + x.

    Args:
        num_vectors: F + 1, including the bottom MLP's output.
        embedding_dim: D.
        num_layers: number of cross layers.
        rank: rows of V, the rank of the product WV.

    Attributes:
        num_shards: see `Mlp`.

    Source: Wang et al. 2021, DCN V2 (arXiv:2008.13535), section 3.3 (one expert).
    """

    num_shards = 0

    def __init__(self, num_vectors: int, embedding_dim: int, num_layers: int, rank: int) -> None:
        super().__init__()
        self.out_features = num_vectors * embedding_dim
        self.down = nn.ModuleList(
            nn.Linear(self.out_features, rank, bias=False) for _ in range(num_layers)
        )
        self.up = nn.ModuleList(nn.Linear(rank, self.out_features) for _ in range(num_layers))
        for down, up in zip(self.down, self.up, strict=True):
            assert isinstance(up, nn.Linear)
            nn.init.xavier_normal_(down.weight)  # type: ignore[arg-type]
            init_linear(up)
            nn.init.zeros_(up.bias)

    def forward(self, bottom: Tensor, vectors: Tensor | None) -> Tensor:
        """Returns [B, (F + 1) * D]."""
        x0 = _concatenated(bottom, vectors)
        x = x0
        for down, up in zip(self.down, self.up, strict=True):
            assert isinstance(down, nn.Linear)
            assert isinstance(up, nn.Linear)
            changed = self._linear(self._linear(x, down.weight), up.weight, up.bias)
            x = torch.addcmul(x, x0, changed.to(x.dtype))
        return x

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.num_shards:
            return linear_in_shards(x, weight, bias, self.num_shards)
        return ops.linear(x, weight, bias)


def build_interaction(
    interaction_op: str,
    num_vectors: int,
    embedding_dim: int,
    dcn_low_rank_dim: int,
) -> Interaction:
    """Builds the interaction that `interaction_op` names."""
    if interaction_op == "cat":
        return CatInteraction(num_vectors, embedding_dim)
    if interaction_op == "dcnv2":
        return LowRankCross(num_vectors, embedding_dim, DCN_LAYERS, dcn_low_rank_dim)
    op = ops.dot_interaction if interaction_op == "cuda_dot" else reference.dot_interaction
    return DotInteraction(num_vectors, embedding_dim, op)
