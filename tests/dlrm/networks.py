# SPDX-License-Identifier: Apache-2.0
"""Small networks, their batches and steps, without a program around them."""

import torch

from dlrm.config import ModelConfig, OptimizerConfig
from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from dlrm.nn.embedding import read_tables
from dlrm.train.step import DlrmTrainStep
from recsys.train.optimizers.precision import Precision

SIZES = (7, 3, 50)


def config(**changes):
    """Returns the settings of a small model."""
    values = {
        "num_numerical_features": 4,
        "embedding_dim": 6,
        "bottom_mlp_sizes": (9, 6),
        "top_mlp_sizes": (10, 5, 1),
        "optimized_mlp": False,
    }
    return ModelConfig(**(values | changes))


def build(seed=0, sizes=SIZES, **changes):
    """Returns a small model."""
    torch.manual_seed(seed)
    return Dlrm(config(**changes), sizes)


def batch(rows=16, sizes=SIZES, num_numerical=4, seed=1):
    """Draws a batch."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, n, (rows,), generator=generator) for n in sizes]
    return Batch(
        torch.randn(rows, num_numerical, generator=generator),
        torch.stack(ids, 1) if ids else torch.empty(rows, 0, dtype=torch.int64),
        (torch.rand(rows, generator=generator) < 0.4).float(),
    )


def train_step(model, optimizer="sgd", *, embedding_l2=0.0, **precision):
    """Returns the training step of a model, by default in float32 on a CPU."""
    config = OptimizerConfig(optimizer=optimizer, embedding_l2=embedding_l2)
    return DlrmTrainStep(model, config, Precision(**{"device_type": "cpu"} | precision))


def tables_of(model):
    """Returns the rows of all tables."""
    return torch.cat([*read_tables(model.embeddings).values()])


def copy_of(model):
    """Returns copies of the dense parameters and of the tables."""
    return [p.detach().clone() for p in (*model.mlp_parameters(), tables_of(model))]
