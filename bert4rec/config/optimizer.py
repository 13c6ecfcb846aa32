# SPDX-License-Identifier: Apache-2.0
"""Settings of the optimizers and the precision of a step."""

import dataclasses
from typing import Literal

from bert4rec.config.fraction import require_fraction
from cuda_ext.row_rules import StatefulRowOptimizer
from recsys.errors import UserError
from recsys.settings import require_not_negative, require_positive, setting
from recsys.train.optimizers.precision import AmpDtype


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
    warmup_steps: int = setting(0, "Steps in which the rate rises from zero")
    warmup_ratio: float | None = setting(
        None, "Fraction of the run's steps that is the warm-up, in place of --warmup_steps"
    )
    extend_schedule: bool = setting(
        False,
        "Let a resumed run of another length continue on the cosine or line of that length, which "
        "changes its rate at once",
        resumable=True,
    )
    weight_decay: float = setting(0.0, "Weight decay (decoupled)")
    no_decay_bias_norm: bool = setting(
        False, "Leave biases, norms and position embeddings out of --weight_decay"
    )
    embedding_lr_factor: float = setting(
        1.0, "Factor of the learning rate of the item and position embeddings"
    )
    clip_norm: float | None = setting(None, "Largest norm of the gradient of a step")
    item_update: Literal["auto", "dense", "rows"] = setting(
        "auto",
        "Update every row of the item tables in each step, or only those that a batch looked up; "
        "auto takes rows with a sampled loss and under --parallelism dmp",
    )
    item_rule: Literal["auto", StatefulRowOptimizer] = setting(
        "auto",
        "Optimizer of the rows under --item_update rows; auto takes adam, and rowwise_adagrad "
        "where FBGEMM updates them on a CPU (--parallelism dmp), since it has no Adam there",
    )
    ema_decay: float = setting(
        0.0,
        "Evaluate and save a moving average of the weights, of which a step keeps this fraction; 0 "
        "takes the weights themselves",
    )
    accumulation_steps: int = setting(
        1, "Batches whose gradients a process adds up before it moves the parameters"
    )

    def __post_init__(self) -> None:
        """Refuses negative rates."""
        require_positive(self, "decay_step", "accumulation_steps")
        require_not_negative(self, "lr", "gamma", "weight_decay", "warmup_steps")
        require_not_negative(self, "embedding_lr_factor")
        if self.warmup_ratio is not None:
            require_fraction(self, "warmup_ratio")
            if self.warmup_steps:
                raise UserError(
                    f"`warmup_ratio` {self.warmup_ratio} takes the place of `warmup_steps` "
                    f"{self.warmup_steps}: set one of them, and `warmup_steps` to 0 otherwise"
                )
        require_fraction(self, "ema_decay", below_one=True)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(f"`clip_norm` must be positive, got {self.clip_norm}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig:
    """Settings of the precision."""

    amp: bool = setting(False, "Compute matrix products in half precision")
    amp_dtype: AmpDtype = setting("bfloat16", "Type of the matrix products under --amp")

    loss_scale: float = setting(
        1024.0, "Static loss scale under --amp_dtype float16", resumable=True
    )
    tf32: bool = setting(
        False, "Multiply float32 matrices as TF32 (10 bits of mantissa) on a GPU", resumable=True
    )

    def __post_init__(self) -> None:
        """Refuses loss scales that are not positive."""
        if not self.loss_scale > 0:
            raise UserError(f"`loss_scale` must be positive, got {self.loss_scale}")
