# SPDX-License-Identifier: Apache-2.0
"""How the bottom-MLP output and the embeddings meet.

Every interaction maps [B, N, D] (row 0 the bottom-MLP output) to [B, out_features]. Letters: B
batch, N vectors, D embedding dimension.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cuda_ext import ops, reference
from dlrm.nn.mlp import init_linear


class DotInteraction(nn.Module):
    """Pairwise dot products.

    Args:
        num_vectors: N.
        embedding_dim: D.
        op: the extension's op, or its reference in plain PyTorch.
    """

    def __init__(
        self, num_vectors: int, embedding_dim: int, op: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.out_features = reference.interaction_width(num_vectors, embedding_dim)
        self.num_padding = self.out_features - (
            embedding_dim + num_vectors * (num_vectors - 1) // 2
        )
        self._op = op

    def forward(self, features: Tensor) -> Tensor:
        """Maps [B, N, D] to [B, out_features]: row 0 | dot products | zeros."""
        return self._op(features)


class CatInteraction(nn.Module):
    """Plain concatenation.

    Args:
        num_vectors: N.
        embedding_dim: D.
    """

    num_padding = 0

    def __init__(self, num_vectors: int, embedding_dim: int) -> None:
        super().__init__()
        self.out_features = num_vectors * embedding_dim

    def forward(self, features: Tensor) -> Tensor:
        """Maps [B, N, D] to [B, N * D]."""
        return features.flatten(1)


class LowRankCross(nn.Module):
    """Low-rank cross layers: x <- x0 * (W (V x) + b) + x.

    Args:
        num_vectors: N.
        embedding_dim: D.
        num_layers: cross layers.
        rank: columns of V.

    Source: Wang et al. 2021, DCN V2 (arXiv:2008.13535), section 3.3 (one expert).
    """

    num_padding = 0

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

    def forward(self, features: Tensor) -> Tensor:
        """Maps [B, N, D] to [B, N * D]."""
        x0 = features.flatten(1)
        x = x0
        for down, up in zip(self.down, self.up, strict=True):
            x = torch.addcmul(x, x0, up(down(x)).to(x.dtype))
        return x


Interaction = DotInteraction | CatInteraction | LowRankCross


def build_interaction(
    interaction_op: str,
    num_vectors: int,
    embedding_dim: int,
    dcn_num_layers: int,
    dcn_low_rank_dim: int,
) -> Interaction:
    """Returns the interaction that --interaction_op names."""
    if interaction_op == "cat":
        return CatInteraction(num_vectors, embedding_dim)
    if interaction_op == "dcnv2":
        return LowRankCross(num_vectors, embedding_dim, dcn_num_layers, dcn_low_rank_dim)
    op = ops.dot_interaction if interaction_op == "cuda_dot" else reference.dot_interaction
    return DotInteraction(num_vectors, embedding_dim, op)
