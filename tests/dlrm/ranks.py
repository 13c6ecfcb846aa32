# SPDX-License-Identifier: Apache-2.0
"""A small DLRM on gloo processes started for a test, and the same one on a single process."""

import contextlib
import multiprocessing
import os

import numpy as np
import torch

from dlrm.config import ModelConfig
from dlrm.data.batch import Batch
from dlrm.distributed.batches import PlacedBatches
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.distributed.shards import CutBatches, Share
from dlrm.model.network import Dlrm
from dlrm.train.step import DlrmTrainStep
from recsys.train.processes import join_processes
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
    for i, table in enumerate(reference.embeddings.tables()):
        model.embeddings.load_table(i, table)
    return model


def distributed_step(model, config, precision, freeze_mlps=False):
    """Returns the step that trains a rank's part together with the others."""
    gradients = AllReducedGradients(model, freeze_mlps=freeze_mlps)
    return DlrmTrainStep(model, config, precision, gradients, freeze_mlps=freeze_mlps)


def cut_batches(source, placed, rank, **more):
    """Returns a rank's batches, cut from those of all ranks."""
    shares = CutBatches(source, Share.of(placed, rank))
    return PlacedBatches(shares, placed, rank, torch.device("cpu"), **more)


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


def run_ranks(monkeypatch, world_size, function, *arguments, joined=True):
    """Calls function(rank, *arguments) on each rank of a process group of its own.

    Args:
        monkeypatch: the fixture.
        world_size: ranks.
        function: what each does.
        *arguments: of it.
        joined: whether the group is made before, or left to the function.
    """
    # Started processes import this module by its name.
    monkeypatch.syspath_prepend(str(harness.REPOSITORY))
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    # Not torch.multiprocessing: it imports torch before the guard in tests/__init__.py.
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(
            target=_one_rank, args=(rank, port, world_size, joined, function, arguments)
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(harness.PATIENCE_S)
    for process in ranks:
        process.kill()
    assert [process.exitcode for process in ranks] == [0] * world_size


def _one_rank(rank, port, world_size, joined, function, arguments):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    with join_processes("cpu", 1) if joined else contextlib.nullcontext():
        function(rank, *arguments)
