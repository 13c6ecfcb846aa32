# SPDX-License-Identifier: Apache-2.0
"""Initial values of embedding rows that depend on the category, not on when it came.

A row of a table that grows starts with the same values as if the category had been known from the
start. Each value is a function of (seed, feature, category, column): outputs of SplitMix64 with a
state made from the first three. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014.
"""

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

_CHUNK_ROWS = 1 << 14
_BITS = 24
"""Random bits of a value, the precision of float32."""
_GOLDEN_RATIO = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def initial_rows(
    seed: int, feature: str, categories: npt.NDArray[np.uint64], width: int, std: float
) -> Tensor:
    """Draws rows from a uniform distribution around zero.

    The same arguments give the same bits on every machine: integers are exact, and each value is
    one product.

    Args:
        seed: seed of the run.
        feature: name of the categorical feature.
        categories: [n] number of each category, see `recsys.data.categories`.
        width: D, columns of the table.
        std: standard deviation.

    Returns:
        [n, D] float32.
    """
    name = xxhash.xxh64_intdigest(feature.encode(), seed)
    states = _mixed(torch.from_numpy(categories.astype(np.int64)) ^ _signed(name))
    steps = torch.arange(1, width + 1) * _signed(_GOLDEN_RATIO)
    bound = float(np.float32(std * 3**0.5))
    rows = torch.empty(len(states), width)
    for first in range(0, len(states), _CHUNK_ROWS):
        drawn = _mixed(states[first : first + _CHUNK_ROWS, None] + steps)
        whole = (drawn >> (64 - _BITS)) & ((1 << _BITS) - 1)
        centred = whole.to(torch.float32) - float(1 << (_BITS - 1))
        torch.mul(centred, bound * 2.0 ** (1 - _BITS), out=rows[first : first + _CHUNK_ROWS])
    return rows


def _mixed(z: Tensor) -> Tensor:
    """Returns the output function of SplitMix64; int64 stands for 64 unsigned bits."""
    for shift, factor in _MIX:
        z = (z ^ _shifted(z, shift)) * _signed(factor)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shifts right without copies of the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Returns 64 unsigned bits as a signed integer."""
    return value - 2**64 if value >= 2**63 else value
