# SPDX-License-Identifier: Apache-2.0
"""Dropout by random bytes on a CPU."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.registration import (
    fake_kernel,
    gradient,
    is_compiled_for,
    is_narrow,
    kernels,
)


def byte_dropout(values: Tensor, draws: Tensor, dropped_levels: int) -> Tensor:
    """Sets values to zero by random bytes; see `reference.byte_dropout`.

    Args:
        values: floating point, of any shape.
        draws: uint8, of as many elements.
        dropped_levels: probability of a zero in 1/256, below 256.

    Returns:
        Of the shape of `values`.

    Raises:
        RuntimeError: sizes or types do not fit together.
    """
    if is_narrow(values):
        return byte_dropout(values.float(), draws, dropped_levels).to(values.dtype)
    if values.device.type != "cpu" or not is_compiled_for(values):
        return reference.byte_dropout(values, draws, dropped_levels)
    output: Tensor = kernels.byte_dropout(values.contiguous(), draws, dropped_levels)
    return output


@fake_kernel("byte_dropout")
def _(values: Tensor, draws: Tensor, dropped_levels: int) -> Tensor:
    return values.new_empty(values.shape)


def _keep_draws(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    _, draws, ctx.dropped_levels = inputs
    ctx.save_for_backward(draws)


@gradient("byte_dropout", _keep_draws)
def _(ops: Any, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (draws,) = ctx.saved_tensors
    return ops.byte_dropout(gradient.contiguous(), draws, ctx.dropped_levels), None, None
