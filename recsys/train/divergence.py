# SPDX-License-Identifier: Apache-2.0
"""Detects runs that learn nothing and suggests remedies."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cuda_ext import ops
from recsys.errors import DivergenceError

CONSTANT_LOSS_STEPS = 100
"""This many steps with exactly the same loss cannot be chance."""

ADVICE = (
    "Try a lower `lr` (a rate tuned for large batches is 10 to 100 times too high for small ones), "
    "a longer `warmup_steps`, or `amp` off"
)
"""Remedies for a run that learns nothing."""


class LossMonitor:
    """Detects losses that are not finite or do not change."""

    def __init__(self) -> None:
        self._last = float("nan")
        self._unchanged = 0

    def check(self, losses: Sequence[float], last_step: int, lr: float) -> None:
        """Checks the losses of the steps up to `last_step`.

        Raises:
            DivergenceError: a loss is not finite, or the loss has stopped changing.
        """
        for i, loss in enumerate(losses):
            step = last_step - len(losses) + 1 + i
            if not math.isfinite(loss):
                raise DivergenceError(
                    f"the loss is {loss} at step {step} (lr {lr:g}): the parameters have "
                    f"diverged and will not recover. {ADVICE}"
                )
            self._unchanged = self._unchanged + 1 if loss == self._last else 0
            self._last = loss
            if self._unchanged >= CONSTANT_LOSS_STEPS:
                raise DivergenceError(
                    f"the loss has been {loss:.6f} for {self._unchanged} steps up to step {step}: "
                    "all labels seen are equal, or the network's output no longer depends on its "
                    f"input (dead ReLUs). {ADVICE}"
                )


@torch.no_grad()
def find_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Returns the name of a tensor that holds NaN or infinity, or None.

    Args:
        tensors: name -> tensor of any shape, dtype and device.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            for chunk in ops.pieces(tensor.contiguous()):
                # One pass without a temporary tensor: the minimum is NaN if any value is.
                if not all(torch.isfinite(bound) for bound in torch.aminmax(chunk)):
                    return name
    return None
