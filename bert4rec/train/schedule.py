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


def warmup_steps(config: Bert4RecConfig, steps_per_epoch: int) -> int:
    """Returns the steps in which the rate rises from zero."""
    optimizer = config.optimizer
    if optimizer.warmup_ratio is None:
        return optimizer.warmup_steps
    return round(optimizer.warmup_ratio * total_steps(config, steps_per_epoch))


def depends_on_length(config: Bert4RecConfig) -> bool:
    """Tells whether rates depend on the length of the run."""
    optimizer = config.optimizer
    return optimizer.lr_schedule != "step" or optimizer.warmup_ratio is not None


def build_schedule(config: Bert4RecConfig, steps_per_epoch: int) -> Schedule:
    """Builds the schedule of the learning rate."""
    optimizer, total = config.optimizer, total_steps(config, steps_per_epoch)
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
