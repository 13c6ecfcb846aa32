# SPDX-License-Identifier: Apache-2.0
"""Every storage, optimizer and placement trains on two processes as on one.

One pair of processes runs all combinations in a row: each is a whole run, from the flags to the
checkpoint.
"""

import contextlib
import itertools
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from absl import flags

from cuda_ext.row_rules import RowOptimizer
from dlrm.config import EmbeddingStorage
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.recipe import DlrmRecipe
from dlrm.scripts import main
from dlrm.scripts.flags import config_from_flags, define_flags
from recsys.train.checkpoint import read_checkpoint
from recsys.train.processes import Processes
from recsys.train.run import execute
from tests.dlrm.conftest import CARDINALITIES, SMALL_MODEL
from tests.dlrm.ranks import figures
from tests.harness import call, run_ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

PLACEMENTS = {
    "copies": ("replicate",) * 4,
    "whole": (0, 1, 0, 1),
    "rows": ("rows",) * 4,
    "mixed": ("replicate", 1, "rows", "rows"),
}
TABLES = [("joint", "float32"), ("joint_sparse", "float32")]
TABLES += [("joint_fused", storage) for storage in get_args(EmbeddingStorage)]
RULES = get_args(RowOptimizer)
RATES = {"sgd": 0.5}

NCCL_TYPES = {
    torch.uint8, torch.int8, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip
COLLECTIVES = ("broadcast", "all_reduce", "all_to_all_single", "all_gather")


def settings(dataset, folder, embedding_type, storage, rule):
    """Returns the flags of a run of four steps."""
    return (
        f"--dataset={dataset}",
        "--dataset_type=split",
        f"--load_checkpoint_path={dataset / 'first'}",
        f"--save_checkpoint_path={folder / 'run'}",
        f"--log_path={folder / 'log.json'}",
        f"--embedding_type={embedding_type}",
        f"--embedding_storage={storage}",
        f"--optimizer={rule}",
        f"--lr={RATES.get(rule, 0.002)}",
        "--batch_size=129",  # not a multiple of the processes
        "--max_steps=4",
        "--print_freq=1",
    )


def run_in_order(rank, dataset, root):
    """Runs every combination on this rank; notes the types that travel."""
    travelled = set()
    for name in COLLECTIVES:
        original = getattr(dist, name)

        def recorded(*tensors, original=original, **options):
            travelled.update(t.dtype for t in tensors if isinstance(t, torch.Tensor))
            return original(*tensors, **options)

        setattr(dist, name, recorded)
    processes = Processes(rank, 2, rank)
    for name, (embedding_type, storage), rule in itertools.product(PLACEMENTS, TABLES, RULES):
        folder = Path(root) / f"{name}-{embedding_type}-{storage}-{rule}"
        folder.mkdir(exist_ok=True)
        values = flags.FlagValues()
        define_flags(values)
        chosen = settings(dataset, folder, embedding_type, storage, rule)
        values(["main", *SMALL_MODEL, *chosen, f"--placement={dataset / name}.json"])
        config = config_from_flags(values)
        execute("train", DlrmRecipe.open, config, print, contextlib.nullcontext(processes))
    torch.save(travelled, Path(root) / f"{rank}.pt")


def weights(folder):
    stored = read_checkpoint(folder / "run")
    groups = {group: stored.tensors(group) for group in stored.groups()}
    return {
        f"{g}/{name}": tensor for g, tensors in groups.items() for name, tensor in tensors.items()
    }


def test_every_combination_trains_as_one_process(dataset, tmp_path):
    first = (f"--dataset={dataset}", f"--save_checkpoint_path={dataset / 'first'}", "--lr=0")
    first += ("--max_steps=1", f"--log_path={tmp_path / 'first.json'}")
    assert call(main, *SMALL_MODEL, *first) == 0
    for name, kinds in PLACEMENTS.items():
        tables = [
            TablePlacement(rows, kind)
            if isinstance(kind, str)
            else TablePlacement(rows, "whole", kind)
            for rows, kind in zip(CARDINALITIES, kinds, strict=True)
        ]
        Placement(2, tuple(tables)).save(dataset / f"{name}.json")
    run_ranks(2, run_in_order, dataset, str(tmp_path))
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt", weights_only=False) <= NCCL_TYPES
    for (embedding_type, storage), rule in itertools.product(TABLES, RULES):
        alone = tmp_path / f"alone-{embedding_type}-{storage}-{rule}"
        alone.mkdir()
        assert (
            call(main, *SMALL_MODEL, *settings(dataset, alone, embedding_type, storage, rule)) == 0
        )
        # Rounding is drawn by the row's number in a process' own table, so bfloat16 differs.
        limit = 3e-2 if storage == "bfloat16" else 1e-5
        expected_losses, expected = figures(alone / "log.json")
        for name in PLACEMENTS:
            folder = tmp_path / f"{name}-{embedding_type}-{storage}-{rule}"
            losses, found = figures(folder / "log.json")
            assert losses == pytest.approx(expected_losses, abs=limit), folder
            assert found["best_auc"] == pytest.approx(expected["best_auc"], abs=limit), folder
            theirs = weights(alone)
            mine = weights(folder)
            assert mine.keys() == theirs.keys()
            for tensor, values in theirs.items():
                told = f"{folder}: {tensor}"
                torch.testing.assert_close(mine[tensor], values, rtol=limit, atol=limit, msg=told)
