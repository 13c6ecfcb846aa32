# SPDX-License-Identifier: Apache-2.0
"""What a training run is put together from: batches, sampler, step, schedule."""

import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.data.accumulated import AccumulatedBatches
from bert4rec.data.batches import TrainBatches
from bert4rec.data.negative_sampler import NegativeSampler, training_popularity
from bert4rec.model.network import Bert4Rec
from bert4rec.train.step import Bert4RecTrainStep, masking_rule
from recsys.data.sequences import Sequences
from recsys.train.precision import Precision
from recsys.train.processes import ALONE, Processes
from recsys.train.schedule import Schedule, WarmupCosine, WarmupPolynomialDecay, WarmupStepDecay


def build_batches(
    config: Bert4RecConfig,
    sequences: Sequences,
    device: torch.device,
    processes: Processes = ALONE,
) -> AccumulatedBatches:
    """Returns this process's training batches."""
    data, steps = config.data, config.optimizer.accumulation_steps
    sources = [
        TrainBatches(
            sequences=sequences,
            kind=data.windows,
            max_len=config.model.max_len,
            dupe_factor=data.dupe_factor,
            batch_size=data.train_batch_size,
            objective=config.objective.objective,
            masking=masking_rule(config.objective),
            seed=config.run.seed,
            device=device,
            rank=processes.rank * steps + part,
            world_size=processes.world_size * steps,
        )
        for part in range(steps)
    ]
    return AccumulatedBatches(sources)


def build_sampler(
    config: Bert4RecConfig, sequences: Sequences, device: torch.device
) -> NegativeSampler | None:
    """Returns what draws the negatives of a sampled loss; None with the full softmax.

    Raises:
        ValueError: gBCE with as many negatives as there are items.
    """
    objective = config.objective
    if objective.loss == "full":
        return None
    if objective.loss == "gbce" and objective.num_negatives >= sequences.num_items:
        raise ValueError(
            f"--num_negatives {objective.num_negatives}: --loss gbce is for a sample of the "
            f"{sequences.num_items} items; ask for fewer, or use --loss full"
        )
    by_popularity = objective.negative_sampler == "popular"
    return NegativeSampler(
        sequences.num_items,
        objective.num_negatives,
        training_popularity(sequences) if by_popularity else None,
        device,
    )


def build_step(
    config: Bert4RecConfig,
    sequences: Sequences,
    model: Bert4Rec,
    precision: Precision,
    processes: Processes = ALONE,
) -> Bert4RecTrainStep:
    """Returns the training step of a model.

    Raises:
        ValueError: the settings ask for what the dataset or this machine does not have.
    """
    sampler = build_sampler(config, sequences, model.head.bias.device)
    return Bert4RecTrainStep(model, config, precision, sampler, processes)


def build_schedule(config: Bert4RecConfig, steps_per_epoch: int) -> Schedule:
    """Returns the learning rate of every step."""
    optimizer, max_steps = config.optimizer, config.run.max_steps
    total = config.run.num_epochs * steps_per_epoch if max_steps is None else max_steps
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
