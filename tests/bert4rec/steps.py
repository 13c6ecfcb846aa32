# SPDX-License-Identifier: Apache-2.0
"""Training steps of a model that is small enough to compare all of it."""

import itertools

import numpy as np
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import TrainBatches
from bert4rec.model.network import Bert4Rec
from bert4rec.train.step import Bert4RecTrainStep, build_step
from recsys.data.sequences.histories import Sequences
from recsys.train.optimizers.precision import Precision

CPU = torch.device("cpu")
FLOAT32 = Precision(device_type="cpu")
NUM_ITEMS = 50
SMALL = {
    "max_len": 8, "emb_dim": 8, "nhead": 2, "num_layers": 2, "dropout": 0.0,
    "attention_dropout": 0.0, "windows": "recent", "dupe_factor": 1, "num_negatives": 12,
    "train_batch_size": 6,
}  # fmt: skip


def config(**settings) -> Bert4RecConfig:
    """Returns the settings of the small model, some of them changed."""
    return Bert4RecConfig.from_dict(SMALL | settings)


def sequences() -> Sequences:
    """Returns histories of 20 users; the upper half of the catalogue occurs in none."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 12, 20)
    offsets = np.concatenate([[0], lengths.cumsum()])
    items = generator.integers(1, NUM_ITEMS // 2, offsets[-1]).astype(np.int32)
    return Sequences(items, offsets, NUM_ITEMS)


def make_model(settings: Bert4RecConfig) -> Bert4Rec:
    """Returns the model, always with the same weights."""
    torch.manual_seed(0)
    model = Bert4Rec(settings.model, NUM_ITEMS)
    with torch.no_grad():
        model.head.bias.normal_(0, 0.1)
    return model


def train(
    settings: Bert4RecConfig,
    precision: Precision = FLOAT32,
    *,
    epochs: int = 1,
    steps: int | None = None,
    model: Bert4Rec | None = None,
) -> tuple[Bert4RecTrainStep, Bert4Rec, torch.Tensor]:
    """Trains a model, by default a new one.

    Args:
        settings: of the run.
        precision: of its steps.
        epochs: of four steps of six sequences.
        steps: after which it ends, if the epochs have as many.
        model: to train further.

    Returns:
        The step, the model, and the loss of each batch.
    """
    model = model or make_model(settings)
    step = build_step(settings, sequences(), model, precision)
    source = TrainBatches(settings, sequences(), CPU)
    batches = (batch for epoch in range(epochs) for batch in source.batches(epoch, 0))
    losses = [step(batch, 0.01).detach() for batch in itertools.islice(batches, steps)]
    return step, model, torch.stack(losses)
