# SPDX-License-Identifier: Apache-2.0
"""Multi-layer perceptrons with NVIDIA DLRM's initialisation."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def init_linear(layer: nn.Linear) -> None:
    """Draws weights from N(0, 2/(in + out)), biases from N(0, 1/out).

    Source: facebookresearch/dlrm and NVIDIA DeepLearningExamples DLRM.
    """
    variance = 2 / (layer.in_features + layer.out_features)
    nn.init.normal_(layer.weight, 0.0, math.sqrt(variance))
    nn.init.normal_(layer.bias, 0.0, math.sqrt(1 / layer.out_features))


class Mlp(nn.Module):
    """Linear layers with ReLU between them.

    Args:
        in_features: width of the input.
        sizes: outputs of each layer.
        final_relu: apply a ReLU after the last layer too (bottom MLP).
        dropout: fraction of activations dropped after each hidden layer in training.
        batch_norm: normalise the output of each hidden layer before its ReLU (Ioffe and Szegedy
            2015, arXiv:1502.03167; FuxiCTR's MLP_Block has the same order).
    """

    def __init__(
        self,
        in_features: int,
        sizes: Sequence[int],
        final_relu: bool,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(i, o) for i, o in itertools.pairwise([in_features, *sizes])
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(o) for o in sizes[:-1] if batch_norm)
        self.final_relu = final_relu
        self.dropout = dropout
        for layer in self.linears:
            init_linear(layer)

    @property
    def linears(self) -> list[nn.Linear]:
        """The linear layers in order."""
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, in_features] to [B, sizes[-1]]."""
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < len(self.norms):
                x = self.norms[i](x)
            if i < last or self.final_relu:
                x = torch.relu(x)
            if i < last and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
        return x


class ApexMlp(nn.Module):
    """Runs an `Mlp` with NVIDIA apex's fused kernels (CUDA, float32 and float16).

    apex applies a ReLU after every layer, so a last layer without one runs in PyTorch. The
    parameters stay those of the `Mlp`, so checkpoints do not depend on apex.

    Args:
        mlp: the perceptron to run.
    """

    def __init__(self, mlp: Mlp) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, in_features] to [B, sizes[-1]]."""
        from apex.mlp.mlp import mlp_function

        linears = self.mlp.linears
        fused = linears if self.mlp.final_relu else linears[:-1]
        if fused:
            relu = 1
            x = mlp_function(1, relu, x, *(m.weight for m in fused), *(m.bias for m in fused))
        if len(fused) == len(linears):
            return x
        last: Tensor = linears[-1](x)
        return last


def has_apex() -> bool:
    """Returns whether NVIDIA's apex is installed (PyPI's `apex` is another project)."""
    try:
        from apex.mlp.mlp import mlp_function
    except ImportError:
        return False
    return mlp_function is not None
