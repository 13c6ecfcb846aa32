# SPDX-License-Identifier: Apache-2.0
"""Multi-layer perceptrons with NVIDIA DLRM's initialisation."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cuda_ext import ops
from dlrm.nn.shards import linear_in_shards

PACKED_ROWS = {torch.float32: 512, torch.bfloat16: 16}
"""Most samples for which one native call is faster than one matrix product per layer, by dtype.

Measured on processors with AVX-512 (benchmark.run inference). In float32, the call is never slower
there, but the difference is small with more samples.
"""

T = TypeVar("T")


def init_linear(layer: nn.Linear) -> None:
    """Draws weights from N(0, 2/(in + out)), biases from N(0, 1/out).

    Source: facebookresearch/dlrm and NVIDIA DeepLearningExamples DLRM.
    """
    variance = 2 / (layer.in_features + layer.out_features)
    nn.init.normal_(layer.weight, 0.0, math.sqrt(variance))
    nn.init.normal_(layer.bias, 0.0, math.sqrt(1 / layer.out_features))


class Mlp(nn.Module):
    """Linear layers with ReLU between them.

    In evaluation mode, it keeps copies of its weights, laid out for fast inference. `train` and
    `eval` drop these copies, so code that changes weights must call one of them afterwards: a
    training step and an evaluation begin with such a call, loading ends with one. The tensors
    themselves do not show a change: fused optimizers write to them without raising their
    `_version`.

    Args:
        in_features: width of the input.
        sizes: outputs of each layer.
        final_relu: whether a ReLU also follows the last layer (bottom MLP).
        dropout: fraction of activations dropped after each hidden layer in training.
        batch_norm: whether to normalise the output of each hidden layer before its ReLU (Ioffe and
            Szegedy 2015, arXiv:1502.03167; FuxiCTR's MLP_Block uses the same order).

    Attributes:
        num_shards: shards of the rows that are multiplied one by one, see `dlrm.nn.shards`; 0
            multiplies all at once.
    """

    num_shards = 0

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
        self._copies: dict[object, object] = {}
        for layer in self.linears:
            init_linear(layer)

    @property
    def linears(self) -> list[nn.Linear]:
        """The linear layers in order."""
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def train(self, mode: bool = True) -> Self:
        """Sets the mode and drops the copies for inference; `eval` calls it too."""
        self._copies.clear()
        return super().train(mode)

    def _kept(self, name: object, make: Callable[[], T]) -> T:
        if name not in self._copies:
            self._copies[name] = make()
        return self._copies[name]  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, in_features] to [B, sizes[-1]]."""
        last = len(self.layers) - 1
        if self.num_shards:
            for i, layer in enumerate(self.linears):
                relu = i < last or self.final_relu
                x = linear_in_shards(x, layer.weight, layer.bias, self.num_shards, relu=relu)
            return x
        if (packed := self.packed_for(x)) is not None:
            return ops.mlp_forward(x, packed, final_relu=self.final_relu)
        if _autocast_dtype() == torch.bfloat16 and self._infers_on_cpu(x):
            return self._infer_in_half(x)
        on_device = ops.takes_perceptron(x)
        if on_device and not self.norms and not (self.training and self.dropout):
            layers = [(layer.weight, layer.bias) for layer in self.linears]
            return ops.perceptron(x, layers, final_relu=self.final_relu)
        for i, layer in enumerate(self.linears):
            relu = i < last or self.final_relu
            if i < len(self.norms):
                x = torch.relu(self.norms[i](ops.linear(x, layer.weight, layer.bias)))
            elif on_device:
                x = ops.perceptron(x, [(layer.weight, layer.bias)], final_relu=relu)
            else:
                x = ops.linear(x, layer.weight, layer.bias, relu=relu)
            if i < last and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
        return x

    def _infers_on_cpu(self, x: Tensor) -> bool:
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        return (
            not tracing
            and not torch.compiler.is_compiling()
            and not torch.is_grad_enabled()
            and not self.training
            and not self.norms
            and x.device.type == "cpu"
            and x.dtype == torch.float32
        )

    def packed_for(self, x: Tensor, most: int | None = None) -> ops.PackedMlp | None:
        """Returns the layers packed for one native call; None if that is not faster.

        Args:
            x: [B, ...] an input, or another tensor with its rows, dtype and device.
            most: most samples; None takes `PACKED_ROWS`.
        """
        if self.num_shards or not self._infers_on_cpu(x):
            return None
        dtype = _autocast_dtype() or x.dtype
        most = PACKED_ROWS.get(dtype, 0) if most is None else most
        return self.packed(dtype) if x.shape[0] <= most else None

    def packed(self, dtype: torch.dtype) -> ops.PackedMlp:
        """Returns the layers packed in a dtype."""

        def pack() -> ops.PackedMlp:
            linears = self.linears
            return ops.pack_mlp([m.weight for m in linears], [m.bias for m in linears], dtype)

        return self._kept(dtype, pack)

    def _infer_in_half(self, x: Tensor) -> Tensor:
        """Runs in bfloat16, with weights that are cast once, not in every call."""
        linears = self.linears

        def cast() -> list[tuple[Tensor, Tensor]]:
            return [(m.weight.bfloat16(), m.bias.bfloat16()) for m in linears]

        x = x.bfloat16()
        for i, (weight, bias) in enumerate(self._kept("linear", cast)):
            x = F.linear(x, weight, bias)
            if i < len(linears) - 1 or self.final_relu:
                x = torch.relu(x)
        return x


def _autocast_dtype() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class ApexMlp(nn.Module):
    """Runs an `Mlp` with NVIDIA apex's fused kernels (CUDA, float32 and float16).

    apex applies a ReLU after every layer, so a last layer without ReLU runs in PyTorch. The
    parameters stay in the `Mlp`, so checkpoints do not depend on apex.
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
    """Returns True if NVIDIA's apex is installed (PyPI's `apex` is another project)."""
    try:
        from apex.mlp.mlp import mlp_function
    except ImportError:
        return False
    return mlp_function is not None
