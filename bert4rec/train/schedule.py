# SPDX-License-Identifier: Apache-2.0
"""Learning rate of each step of a BERT4Rec run."""

from bert4rec.config import Bert4RecConfig, RunConfig
from recsys.train.loop import LoopConfig
from recsys.train.optimizers.schedule import (
    Schedule,
    WarmupCosine,
    WarmupPolynomialDecay,
    WarmupStepDecay,
)


def total_steps(run: RunConfig, steps_per_epoch: int) -> int:
    """Returns the steps of a whole run."""
    return LoopConfig(epochs=run.num_epochs, max_steps=run.max_steps).steps(steps_per_epoch)


def warmup_steps(config: Bert4RecConfig, steps_per_epoch: int) -> int:
    """Returns the number of steps in which the learning rate rises from zero."""
    steps = config.optimizer.warmup_steps
    return round(steps * total_steps(config.run, steps_per_epoch) if steps < 1 else steps)


def depends_on_length(config: Bert4RecConfig) -> bool:
    """Returns True if learning rates depend on the length of the run."""
    optimizer = config.optimizer
    return optimizer.lr_schedule != "step" or 0 < optimizer.warmup_steps < 1


def build_schedule(config: Bert4RecConfig, steps_per_epoch: int) -> Schedule:
    """Builds the learning rate schedule."""
    optimizer, total = config.optimizer, total_steps(config.run, steps_per_epoch)
    warmup = warmup_steps(config, steps_per_epoch)
    if optimizer.lr_schedule == "cosine":
        return WarmupCosine(base_lr=optimizer.lr, warmup_steps=warmup, total_steps=total)
    if optimizer.lr_schedule == "linear":
        return WarmupPolynomialDecay(
            base_lr=optimizer.lr,
            warmup_steps=warmup,
            decay_steps=max(total - warmup, 1),
            decay_power=1,
        )
    return WarmupStepDecay(
        base_lr=optimizer.lr,
        warmup_steps=warmup,
        interval=optimizer.decay_step * steps_per_epoch,
        factor=optimizer.gamma,
    )
