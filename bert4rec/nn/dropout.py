# SPDX-License-Identifier: Apache-2.0
"""Dropout that draws eight decisions from each random 64-bit word.

PyTorch draws dropout on a CPU with one call of a serial generator per element, which takes a tenth
of a training step. One byte per decision is enough: it rounds the probability to 1/256.
"""

import torch
from torch import Tensor, nn

_LEVELS = 256


def draw_bytes(count: int) -> Tensor:
    """Draws [count] uint8 uniformly on a CPU."""
    words = torch.empty(-(-count // 8), dtype=torch.int64)
    words.random_(-(2**63), None)
    return words.view(torch.uint8)[:count]


def dropped_levels(probability: float) -> int:
    """Rounds a probability to an integer in units of 1/256."""
    return round(probability * _LEVELS)


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """Sets elements to zero at random while training, and scales the rest.

    Args:
        values: floating-point tensor of any shape.
        probability: probability of a zero, in [0, 1); on a CPU rounded to a multiple of 1/256,
            except in compiled code, where PyTorch fuses the draws with the loop that uses them.
        training: False returns `values` unchanged.
    """
    if not training or probability == 0.0:
        return values
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.dropout(values, probability)
    levels = dropped_levels(probability)
    kept = (draw_bytes(values.numel()) >= levels).view(values.shape)
    return values * (_LEVELS / (_LEVELS - levels)) * kept


class Dropout(nn.Module):
    """`dropout` as a layer."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Maps any shape to the same shape."""
        return dropout(values, self.probability, self.training)
