# SPDX-License-Identifier: Apache-2.0
"""A small DLRM on gloo processes started for a test, and the same one on a single process."""

from pathlib import Path

import torch

from dlrm.distributed.batches import ExchangedBatches
from dlrm.distributed.columns import CutBatches, RankColumns
from dlrm.distributed.gradients import AllReducedGradients
from dlrm.distributed.network import DistributedDlrm
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.nn.embedding import load_table, read_tables
from dlrm.train.step import DlrmTrainStep
from tests import harness
from tests.dlrm import networks

SIZES = (3, 40, 1000, 7, 500, 64)
PLACEMENTS = {
    "mixed": ("replicate", 0, "rows", "replicate", 1, "rows"),
    "all copies": ("replicate",) * 6,
    "all on one": (1,) * 6,
    "all by rows": ("rows",) * 6,
}


def torchrun(launcher, module):
    """Returns the arguments of Python that start a module on ranks which the launcher forks."""
    script = Path(__file__).with_name("forked_rank.py")
    return (*launcher, "--start_method=fork", "--run_path", script, module)


def ranks_of(launcher):
    """Returns the process numbers of the ranks that a launcher has started, by rank.

    Linux lists children in the order of their start, where their numbers may begin anew.
    """
    files = Path(f"/proc/{launcher.pid}/task").glob("*/children")
    return [int(number) for file in files for number in file.read_text().split()]


def placement(name, world_size):
    """Returns one of PLACEMENTS."""
    return placement_of(world_size, SIZES, PLACEMENTS[name])


def placement_of(world_size, sizes, kinds):
    """Returns where tables lie: a number is a rank that has one whole."""
    tables = [
        TablePlacement(n, kind) if isinstance(kind, str) else TablePlacement(n, "whole", kind)
        for n, kind in zip(sizes, kinds, strict=True)
    ]
    return Placement(world_size, tuple(tables))


class Batches:
    """Numbered batches of all ranks."""

    def __init__(self, batch_size, numbers):
        self.batch_size, self.numbers = batch_size, numbers
        self.num_batches = len(numbers)

    def batches(self, epoch=0, start=0):
        """Yields them."""
        for number in self.numbers[start:]:
            yield networks.batch(self.batch_size, SIZES, seed=number)


MODEL = {"embedding_dim": 8, "bottom_mlp_sizes": (16, 8), "top_mlp_sizes": (32, 1)}


def single(embedding_type):
    """Returns the model on one process."""
    return networks.build(1, SIZES, embedding_type=embedding_type, **MODEL)


def distributed(embedding_type, placed, rank):
    """Returns a rank's part of the same model."""
    reference = single(embedding_type)
    config = networks.config(embedding_type=embedding_type, **MODEL)
    model = DistributedDlrm(config, placed, rank)
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
