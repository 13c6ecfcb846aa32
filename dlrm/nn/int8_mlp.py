# SPDX-License-Identifier: Apache-2.0
"""MLPs with 8-bit weights and activations, for inference on a CPU.

A number is stored as a whole number times a scale: weights in [-127, 127] with a scale per output,
activations in [0, 255] with one scale per layer. Products and sums are exact, in 32 bits. On a
processor without VNNI instructions, activations have 7 bits. Source: Jacob et al. 2018
(arXiv:1712.05877).
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cuda_ext import ops
from dlrm.nn.frozen_embedding import quantize_rows
from dlrm.nn.mlp import Mlp

_LEAST_WIDTH = 64
"""Layers with fewer inputs or outputs stay float32: 8 bits gain little time and lose accuracy."""

_FEW_ROWS = 32
"""Most samples for which float32, in one native call, is faster."""


@functools.cache
def largest_activation() -> int:
    """Returns 255, or 127 if this processor cuts off sums of 8-bit products.

    Without VNNI, two products are added in 16 bits, which fit 2 x 127 x 127 but not 2 x 255 x 127.
    """
    ones = torch.ones(64, dtype=torch.int64)
    x = torch.full((1, 64), 255, dtype=torch.uint8)
    weight = torch.ops.onednn.qlinear_prepack(torch.full((64, 64), 127, dtype=torch.int8), None)
    sums = torch.ops.onednn.qlinear_pointwise(
        *(x, 1.0, 0, weight, ones.float(), 0 * ones, None, 1.0, 0, torch.float32, "none", [], "")
    )
    return 255 if bool((sums == 64 * 255 * 127).all()) else 127


@contextlib.contextmanager
def observed_inputs(mlp: Mlp) -> Iterator[list[Tensor]]:
    """Records the largest magnitudes of the inputs of each layer.

    Yields:
        [inputs] float32 for each layer, updated by every forward pass of `mlp`.
    """
    largest = [torch.zeros(layer.in_features) for layer in mlp.linears]

    @torch.no_grad()
    def observe(_module: nn.Module, arguments: tuple[Tensor]) -> None:
        x = arguments[0].to(torch.float32)
        for layer, seen in zip(mlp.linears, largest, strict=True):
            torch.maximum(seen, x.abs().amax(dim=0), out=seen)
            x = torch.relu(F.linear(x, layer.weight, layer.bias))

    handle = mlp.register_forward_pre_hook(observe)
    try:
        yield largest
    finally:
        handle.remove()


class _Int8Layer:
    """A layer with 8-bit weights on 8-bit inputs.

    A float32 input is rounded here with one scale per column; the weights absorb the scales. Thus
    inputs of very different sizes (dot products and a dense vector) lose the same share of their
    contribution. Source of this idea: Xiao et al. 2023 (SmoothQuant, arXiv:2211.10438).

    Args:
        layer: the layer to copy.
        largest: [inputs] largest magnitudes of its input.
        is_after_int8: whether the input comes in 8 bits from the previous layer and its ReLU.
        output_largest: largest output if the output has 8 bits; None if it is float32.
    """

    def __init__(
        self,
        layer: nn.Linear,
        largest: Tensor,
        is_after_int8: bool,
        output_largest: Tensor | None,
    ) -> None:
        weight = layer.weight.detach().to(torch.float32)
        self._largest = largest_activation()
        zero = (self._largest + 1) // 2  # code of 0 in inputs that may be negative
        self._factor: Tensor | None = None
        if is_after_int8:
            self._input_scale, self._input_zero = _activation_scale(largest.amax()), 0
        else:
            scale = largest / (self._largest - zero)
            # A column that was always 0 gets zero weights, so that it does not affect the scales.
            weight, factor = weight * scale, scale.reciprocal()
            self._factor = factor.masked_fill_(scale == 0, 0.0)
            self._input_scale, self._input_zero = 1.0, zero
        values, self._weight_scale = quantize_rows(weight)
        self._weight = torch.ops.onednn.qlinear_prepack(values, None)
        self._weight_zero = torch.zeros(layer.out_features, dtype=torch.int64)
        self._bias = layer.bias.detach().to(torch.float32)
        self._output_scale = None if output_largest is None else _activation_scale(output_largest)

    def __call__(self, x: Tensor, relu: bool) -> Tensor:
        if self._factor is not None:
            x = (x * self._factor).add_(self._input_zero).round_().clamp_(0, self._largest)
            x = x.to(torch.uint8)
        is_float = self._output_scale is None
        output: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(x, self._input_scale, self._input_zero),
            *(self._weight, self._weight_scale, self._weight_zero, self._bias),
            *(self._output_scale or 1.0, 0, torch.float32 if is_float else torch.uint8),
            *("relu" if relu else "none", [], ""),
        )
        return output


def _activation_scale(largest: Tensor) -> float:
    """Returns the scale of activations; 1 if all were 0."""
    return float(largest) / largest_activation() or 1.0


class Int8Mlp(nn.Module):
    """Runs an `Mlp` in 8 bits; narrow layers stay float32.

    Inputs beyond the range of the calibration are clipped. A few samples run in float32, which is
    faster for them than one call per layer.

    Args:
        mlp: the MLP to copy, on a CPU, without batch norm.
        largest: magnitudes from `observed_inputs`.
    """

    def __init__(self, mlp: Mlp, largest: Sequence[Tensor]) -> None:
        super().__init__()
        self._mlp = mlp
        linears = mlp.linears
        is_int8 = [min(m.in_features, m.out_features) >= _LEAST_WIDTH for m in linears]
        self._final_relu = mlp.final_relu
        self._layers: list[nn.Linear | _Int8Layer] = []
        for i, layer in enumerate(linears):
            if not is_int8[i]:
                self._layers.append(layer)
                continue
            output = largest[i + 1].amax() if i + 1 < len(linears) and is_int8[i + 1] else None
            self._layers.append(_Int8Layer(layer, largest[i], i > 0 and is_int8[i - 1], output))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, in_features] float32 to [B, outputs of the last layer] float32."""
        if (packed := self._mlp.packed_for(x, _FEW_ROWS)) is not None:
            return ops.mlp_forward(x, packed, final_relu=self._final_relu)
        last = len(self._layers) - 1
        for i, layer in enumerate(self._layers):
            relu = i < last or self._final_relu
            if isinstance(layer, _Int8Layer):
                x = layer(x, relu)
            else:
                x = torch.relu(layer(x)) if relu else layer(x)
        return x
