# SPDX-License-Identifier: Apache-2.0
"""Detects runs that learn nothing, and suggests remedies."""

import math
from collections.abc import Sequence

from recsys.errors import DivergenceError

CONSTANT_LOSS_STEPS = 100
"""So many steps with the very same loss cannot be chance."""

ADVICE = (
    "Try a lower `lr` (a rate tuned for 32,768-row batches of the Terabyte set is 10 to 100 times "
    "too high for small data), a longer `warmup_steps`, or `amp` off; check the data with "
    "python -m dataspec.verify"
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
