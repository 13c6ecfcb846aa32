# SPDX-License-Identifier: Apache-2.0
"""A small DLRM on gloo processes started for a test, and the same one on a single process."""

import numpy as np
import torch

from dlrm.config import ModelConfig
from dlrm.data.batch import Batch
from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import CutBatches, RankColumns
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.model.network import Dlrm
from dlrm.nn.embedding import load_table, read_tables
from dlrm.train.step import DlrmTrainStep
from tests import harness

SIZES = (3, 40, 1000, 7, 500, 64)
PLACEMENTS = {
    "mixed": ("replicate", 0, "rows", "replicate", 1, "rows"),
    "all copies": ("replicate",) * 6,
    "all whole": (0, 1, 0, 1, 0, 1),
    "all on one": (1,) * 6,
    "all by rows": ("rows",) * 6,
}


def placement(name, world_size):
    """Returns one of PLACEMENTS."""
    tables = []
    for rows, kind in zip(SIZES, PLACEMENTS[name], strict=True):
        if isinstance(kind, str):
            tables.append(TablePlacement(rows, kind))
        else:
            tables.append(TablePlacement(rows, "whole", kind))
    return Placement(world_size, tuple(tables))


def batch(rows, seed=5):
    """Returns a batch of all ranks."""
    generator = np.random.default_rng(seed)
    ids = np.stack([generator.integers(0, n, rows) for n in SIZES], axis=1)
    return Batch(
        torch.from_numpy(generator.standard_normal((rows, 4), dtype=np.float32)),
        torch.from_numpy(ids),
        torch.from_numpy(generator.integers(0, 2, rows).astype(np.float32)),
    )


def model_config(embedding_type):
    """Returns a small model."""
    return ModelConfig(
        num_numerical_features=4,
        embedding_dim=8,
        bottom_mlp_sizes=(16, 8),
        top_mlp_sizes=(32, 1),
        optimized_mlp=False,
        embedding_type=embedding_type,
    )


def single(embedding_type):
    """Returns the model on one process."""
    torch.manual_seed(1)
    return Dlrm(model_config(embedding_type), SIZES)


def distributed(embedding_type, placed, rank):
    """Returns a rank's part of the same model."""
    reference = single(embedding_type)
    model = DistributedDlrm(model_config(embedding_type), placed, rank)
    for mine, theirs in zip(model.mlp_parameters(), reference.mlp_parameters(), strict=True):
        mine.data.copy_(theirs.data)
    for i, table in read_tables(reference.embeddings).items():
        load_table(model.embeddings, i, table)
    return model


def distributed_step(model, config, precision):
    """Returns the step that trains a rank's part together with the others."""
    gradients = AllReducedGradients(model)
    return DlrmTrainStep(model, config, precision, gradients)


def cut_batches(source, placed, rank, **more):
    """Returns a rank's batches, cut from those of all ranks."""
    cut = CutBatches(source, RankColumns.of(placed, rank))
    return ExchangedBatches(cut, placed, rank, torch.device("cpu"), **more)


def figures(log):
    """Returns the losses by step, and everything else that is logged, by name."""
    losses, others = {}, {}
    for entry in harness.read_log(log):
        if entry["step"] == "PARAMETER":
            continue
        data = entry["data"]
        if "loss" in data and "auc" not in data:
            losses[entry["step"][1]] = data["loss"]
        else:
            others |= data
    return losses, others
