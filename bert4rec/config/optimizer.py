# SPDX-License-Identifier: Apache-2.0
"""Settings of the optimizers and the precision of a step."""

import dataclasses
from typing import Literal

from recsys.errors import UserError
from recsys.settings import require_not_negative, require_positive, setting
from recsys.train.optimizers import AmpDtype


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Settings of the optimizers."""

    lr: float = setting(1e-3, "Learning rate")
    lr_schedule: Literal["step", "cosine", "linear"] = setting(
        "step",
        "Multiply by --gamma every --decay_step epochs, or fall to zero along a cosine or a line",
    )
    decay_step: int = setting(25, "Epochs between falls of the rate under --lr_schedule step")
    gamma: float = setting(1.0, "Factor of each fall under --lr_schedule step")
    warmup_steps: float = setting(
        0, "Steps in which the rate rises from zero; below 1 a fraction of the run's steps"
    )
    weight_decay: float = setting(0.0, "Weight decay (decoupled)")
    clip_norm: float | None = setting(None, "Largest norm of the gradient of a step")
    accumulation_steps: int = setting(
        1, "Batches whose gradients a process adds up before it moves the parameters"
    )

    def __post_init__(self) -> None:
        """Refuses negative rates."""
        require_positive(self, "decay_step", "accumulation_steps")
        require_not_negative(self, "lr", "gamma", "weight_decay", "warmup_steps")
        if self.warmup_steps > 1 and self.warmup_steps % 1:
            raise UserError(
                f"`warmup_steps` must be whole steps, or a fraction below 1, got "
                f"{self.warmup_steps}"
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(f"`clip_norm` must be positive, got {self.clip_norm}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig:
    """Settings of the precision."""

    amp: bool = setting(False, "Compute matrix products in half precision")
    amp_dtype: AmpDtype = setting("bfloat16", "Type of the matrix products under --amp")

    @property
    def loss_scale(self) -> float:
        """Static loss scale of float16."""
        return 1024.0

    @property
    def tf32(self) -> bool:
        """False: mixed precision is the fast way on a GPU."""
        return False
