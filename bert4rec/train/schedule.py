# SPDX-License-Identifier: Apache-2.0
"""Learning rate of each step of a BERT4Rec run."""

from bert4rec.config import Bert4RecConfig
from recsys.train.optimizers.schedule import (
    Schedule,
    WarmupCosine,
    WarmupPolynomialDecay,
    WarmupStepDecay,
)


def total_steps(config: Bert4RecConfig, steps_per_epoch: int) -> int:
    """Returns the steps of a whole run."""
    by_epochs = config.run.num_epochs * steps_per_epoch
    return by_epochs if config.run.max_steps is None else min(by_epochs, config.run.max_steps)


def build_schedule(config: Bert4RecConfig, steps_per_epoch: int) -> Schedule:
    """Builds the schedule of the learning rate."""
    optimizer, total = config.optimizer, total_steps(config, steps_per_epoch)
    if optimizer.lr_schedule == "cosine":
        return WarmupCosine(
            base_lr=optimizer.lr, warmup_steps=optimizer.warmup_steps, total_steps=total
        )
    if optimizer.lr_schedule == "linear":
        return WarmupPolynomialDecay(
            base_lr=optimizer.lr,
            warmup_steps=optimizer.warmup_steps,
            decay_steps=max(total - optimizer.warmup_steps, 1),
            decay_power=1,
        )
    return WarmupStepDecay(
        base_lr=optimizer.lr,
        warmup_steps=optimizer.warmup_steps,
        interval=optimizer.decay_step * steps_per_epoch,
        factor=optimizer.gamma,
    )
