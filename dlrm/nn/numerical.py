# SPDX-License-Identifier: Apache-2.0
"""Maps numerical features to vectors.

Source: Gorishniy et al. 2022, On Embeddings for Numerical Features in Tabular Deep Learning
(arXiv:2203.05556).
"""

import math

import torch
from torch import Tensor, nn

INIT_STD = 0.01
"""Default standard deviation of the initial vectors of bins; `embedding_init` overrides it."""


class NumericalEmbedding(nn.Module):
    """Maps each numerical feature to its own vector.

    Knots k_0 < ... < k_T divide the values of a feature into T intervals. With `bins`, a number has
    the vector of its interval; numbers below k_0 have that of the first, above k_T that of the
    last. With `piecewise_linear`, a number is encoded as T shares: 1 for each interval below it, 0
    for each above it, and for its own interval the part below the number. A linear layer and a ReLU
    turn these into the vector ("Q-LR" in the paper). A feature with fewer intervals repeats its
    last knot.

    Args:
        kind: `bins` or `piecewise_linear`.
        num_features: M.
        num_bins: T.
        dim: D, columns of a vector.
        init_std: standard deviation of the initial vectors of bins; None means `INIT_STD`.

    Attributes:
        knots: [M, T + 1] float32, ascending; evenly spaced in [-2, 2] until `set_knots`.
        weight: [M, T, D].
        bias: [M, D] for `piecewise_linear`; None for `bins`.
    """

    knots: Tensor
    bias: nn.Parameter | None

    def __init__(
        self, kind: str, num_features: int, num_bins: int, dim: int, init_std: float | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2, 2, num_bins + 1).repeat(num_features, 1))
        self.weight = nn.Parameter(torch.empty(num_features, num_bins, dim))
        if kind == "bins":
            self.register_parameter("bias", None)
            nn.init.normal_(self.weight, 0.0, init_std or INIT_STD)
        else:
            self.bias = nn.Parameter(torch.empty(num_features, dim))
            bound = 1 / math.sqrt(num_bins)
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)

    @torch.no_grad()
    def set_knots(self, knots: Tensor) -> None:
        """Copies [M, T + 1] knots."""
        self.knots.copy_(knots)

    def forward(self, numerical: Tensor) -> Tensor:
        """Maps [B, M] numbers to [B, M, D] vectors, in float32 or the autocast dtype."""
        x = numerical.to(self.knots.dtype).unsqueeze(2)
        if self.bias is None:
            inside = (x >= self.knots[:, 1:-1]).to(x.dtype)
            code = nn.functional.pad(inside, (1, 0), value=1.0)
            code = code - nn.functional.pad(inside, (0, 1))
            return torch.bmm(code.transpose(0, 1), self.weight).transpose(0, 1)
        width = self.knots[:, 1:] - self.knots[:, :-1]
        scale = torch.where(width > 0, 1 / width, 0.0)  # a repeated knot encodes nothing
        code = ((x - self.knots[:, :-1]) * scale).clamp(0, 1)
        vectors = torch.baddbmm(self.bias.unsqueeze(1), code.transpose(0, 1), self.weight)
        return torch.relu(vectors).transpose(0, 1)
