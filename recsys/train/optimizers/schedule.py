# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules: pure functions of the step."""

import dataclasses
import math
from typing import Protocol

from recsys.errors import UserError


class Schedule(Protocol):
    """A learning rate for every step."""

    def lr(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 1."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WarmupPolynomialDecay:
    """Linear warm-up, constant, then polynomial decay.

    Attributes:
        base_lr: learning rate between warm-up and decay.
        warmup_steps: steps of the warm-up; 0 starts at base_lr.
        warmup_factor: the warm-up starts at 1 - 2**-warmup_factor of base_lr.
        decay_start_step: last step at base_lr; None decays right after the warm-up.
        decay_steps: steps of the decay; 0 never decays.
        decay_power: exponent of the decay.
        decay_end_lr: lowest rate of the decay.

    Source: NVIDIA DeepLearningExamples DLRM, LearningRateScheduler.
    """

    base_lr: float
    warmup_steps: int = 0
    warmup_factor: int = 0
    decay_start_step: int | None = None
    decay_steps: int = 0
    decay_power: int = 2
    decay_end_lr: float = 0.0

    def __post_init__(self) -> None:
        """Refuses a decay that starts before the warm-up ends."""
        if self.decay_start_step is not None and self.decay_start_step < self.warmup_steps:
            raise UserError(
                f"`decay_start_step` ({self.decay_start_step}) must not come before the end of "
                f"the warm-up (`warmup_steps` {self.warmup_steps})",
                settings=("decay_start_step", "warmup_steps"),
            )

    def lr(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 1."""
        if step <= self.warmup_steps:
            missing = (self.warmup_steps - step) / self.warmup_steps
            return self.base_lr * (1 - missing * 2.0**-self.warmup_factor)
        start = self.warmup_steps if self.decay_start_step is None else self.decay_start_step
        if self.decay_steps == 0 or step <= start:
            return self.base_lr
        remaining = max(start + self.decay_steps - step, 0) / self.decay_steps
        return max(self.base_lr * math.pow(remaining, self.decay_power), self.decay_end_lr)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WarmupCosine:
    """Linear warm-up, then a fall to zero along half a cosine.

    Attributes:
        base_lr: learning rate at the end of the warm-up.
        warmup_steps: steps of the warm-up; 0 starts at base_lr.
        total_steps: last step, after which the learning rate is zero.

    Source: Loshchilov and Hutter 2017 (arXiv:1608.03983), without restarts.
    """

    base_lr: float
    warmup_steps: int
    total_steps: int

    def lr(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 1."""
        if step <= self.warmup_steps:
            return self.base_lr * step / self.warmup_steps
        done = (step - self.warmup_steps) / max(self.total_steps - self.warmup_steps, 1)
        return self.base_lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WarmupStepDecay:
    """Linear warm-up, then a learning rate that is multiplied at regular intervals.

    Attributes:
        base_lr: learning rate at the end of the warm-up.
        warmup_steps: steps of the warm-up; 0 starts at base_lr.
        interval: steps between two multiplications.
        factor: factor of the learning rate, in (0, 1].

    Source: torch.optim.lr_scheduler.StepLR.
    """

    base_lr: float
    warmup_steps: int
    interval: int
    factor: float

    def lr(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 1."""
        if step <= self.warmup_steps:
            return self.base_lr * step / self.warmup_steps
        return float(self.base_lr * self.factor ** ((step - 1) // self.interval))
