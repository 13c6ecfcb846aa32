# SPDX-License-Identifier: Apache-2.0
"""Dropout that draws eight decisions from each random 64-bit word.

PyTorch draws dropout on a CPU with one call of a serial generator per element, which takes a tenth
of a training step. One byte per decision is enough: the probability is kept to 1/256.
"""

import torch
from torch import Tensor, nn

_LEVELS = 256


def draw_bytes(count: int) -> Tensor:
    """Draws [count] uint8 uniformly on a CPU."""
    words = torch.empty(-(-count // 8), dtype=torch.int64)
    words.random_(-(2**63), None)
    return words.view(torch.uint8)[:count]


def draw_kept(like: Tensor, dropped_levels: int) -> Tensor:
    """Draws 1 for a kept element and 0 for a dropped one.

    Args:
        like: floating-point tensor on a CPU; gives shape and dtype of the result.
        dropped_levels: probability of a 0, in 1/256.
    """
    drawn = draw_bytes(like.numel()).view(like.shape)
    return (drawn >= dropped_levels).to(like.dtype)


def dropped_levels(probability: float) -> int:
    """Rounds a probability to an integer in units of 1/256."""
    return round(probability * _LEVELS)


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, values: Tensor, dropped_levels: int
    ) -> Tensor:
        factor = draw_kept(values, dropped_levels)
        factor.mul_(_LEVELS / (_LEVELS - dropped_levels))
        ctx.save_for_backward(factor)
        return values * factor

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient * factor, None


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """Sets elements to zero at random while training, and scales the rest.

    Args:
        values: floating-point tensor of any shape.
        probability: probability of a zero, in [0, 1); on a CPU rounded to a multiple of 1/256,
            except in compiled code, where PyTorch draws in the loop that uses the draws.
        training: False returns `values` unchanged.
    """
    if not training or probability == 0.0:
        return values
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.dropout(values, probability)
    output: Tensor = _ByteDropout.apply(values, dropped_levels(probability))  # type: ignore[no-untyped-call]
    return output


class Dropout(nn.Module):
    """`dropout` as a layer."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Maps any shape to the same shape."""
        return dropout(values, self.probability, self.training)
