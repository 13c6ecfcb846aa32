# SPDX-License-Identifier: Apache-2.0
"""Several ranks train as one process: every dataset type, placement, storage and optimizer.

Each case is a whole run, from the flags to the checkpoint. All of a number of ranks share one
process group: starting processes is what takes time.
"""

import contextlib
import itertools
from typing import NamedTuple, get_args

import pytest

from cuda_ext import RowOptimizer
from dlrm.config import DatasetType, EmbeddingStorage
from dlrm.recipe import DlrmRecipe
from dlrm.scripts import main
from dlrm.scripts.flags import config_from_flags, define_flags
from recsys.program import new_flags
from recsys.train.processes import Processes
from recsys.train.run import execute
from tests.checkpoints import assert_same
from tests.dlrm.conftest import CARDINALITIES, ROWS, SMALL_MODEL
from tests.dlrm.ranks import figures, placement_of
from tests.harness import call, run_ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

KINDS = {
    "mixed": ("replicate", 0, "rows", 1),
    "copies": ("replicate",) * 4,
    "whole": (1, 0, 1, 0),
    "on one": (1,) * 4,
    "rows": ("rows",) * 4,
}
DATASET_TYPES = get_args(DatasetType)
EMBEDDING_TYPES = ("joint", "joint_sparse", "joint_fused")


class Case(NamedTuple):
    """A run; a placement of None is planned, or that of one process."""

    placement: str | None = None
    dataset_type: str = "split"
    embedding_type: str = "joint_fused"
    storage: str = "float32"
    rule: str = "sgd"

    @property
    def steps(self):
        """The adaptive rules divide by gradients of which some are rounding errors alone."""
        return 8 if self.rule == "sgd" else 4

    def folder(self, root):
        return root / "-".join(map(str, self))

    def flags(self, dataset, root):
        shuffle = self.dataset_type in ("split", "parquet")
        data = (f"--dataset={dataset}", f"--shuffle={shuffle}")
        if self.dataset_type.startswith("synthetic"):
            data = (
                f"--synthetic_dataset_num_entries={ROWS['train']}",
                f"--synthetic_dataset_table_sizes={','.join(map(str, CARDINALITIES))}",
            )
        if self.dataset_type == "synthetic_disk":
            data += (f"--synthetic_dataset_dir={root / 'synthetic'}",)
        return (
            *SMALL_MODEL,
            *data,
            f"--dataset_type={self.dataset_type}",
            "--num_numerical_features=3",
            f"--load_checkpoint_path={root / 'first'}",
            "--test_batch_size=333",
            f"--save_checkpoint_path={self.folder(root) / 'run'}",
            f"--log_path={self.folder(root) / 'log.json'}",
            f"--embedding_type={self.embedding_type}",
            f"--embedding_storage={self.storage}",
            f"--optimizer={self.rule}",
            f"--lr={0.5 if self.rule == 'sgd' else 0.002}",
            "--batch_size=857",  # not a multiple of the ranks; the last batch has one row
            f"--max_steps={self.steps}",
            "--print_freq=1",
        )


TABLES = [("joint", "float32"), ("joint_sparse", "float32")]
TABLES += [("joint_fused", storage) for storage in get_args(EmbeddingStorage)]


def cases_of(world_size):
    """Each dataset type, and every pair of placement, type or storage of tables, and optimizer.

    What a rank reads of each type under a placement: test_distributed_input.py.
    """
    names = [None, *KINDS] if world_size == 2 else ["mixed", "rows"]
    cases = [
        Case(name, dataset_type, embedding_type)
        for name, dataset_type, embedding_type in zip(
            itertools.cycle(names), DATASET_TYPES, itertools.cycle(EMBEDDING_TYPES)
        )
    ]
    if world_size == 2:
        rules = get_args(RowOptimizer)
        cases += [
            Case(name, "split", *TABLES[j % len(TABLES)], rules[(i + j) % len(rules)])
            for i, name in enumerate(KINDS)
            for j in range(max(len(TABLES), len(rules)))
        ]
        placed = set(itertools.product(KINDS, rules)) - {case[0:5:4] for case in cases}
        stored = {(*t, r) for t in TABLES for r in rules} - {case[2:] for case in cases}
        assert not placed | stored, "pairs without a case"
    return list(dict.fromkeys(cases))


def run_in_order(rank, world_size, dataset, root):
    """Runs every case on this rank."""
    processes = Processes(rank, world_size, rank)
    for case in cases_of(world_size):
        case.folder(root).mkdir(exist_ok=True)
        placed = () if case.placement is None else (f"--placement={root / case.placement}.json",)
        values = new_flags()
        define_flags(values)
        values(["main", *case.flags(dataset, root), *placed])
        config = config_from_flags(values)
        execute("train", DlrmRecipe.open, config, print, contextlib.nullcontext(processes))


@pytest.fixture(scope="module")
def alone(tmp_path_factory, dataset):
    """A folder with weights to begin with, and for runs of one process."""
    root = tmp_path_factory.mktemp("alone")
    first = (f"--dataset={dataset}", f"--save_checkpoint_path={root / 'first'}", "--lr=0")
    assert call(main, *SMALL_MODEL, *first, "--max_steps=1", f"--log_path={root / 'log'}") == 0
    return root


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_train_as_one_process(dataset, alone, tmp_path, world_size):
    (tmp_path / "first").symlink_to(alone / "first")
    for name, kinds in KINDS.items():
        placement_of(world_size, CARDINALITIES, kinds).save(tmp_path / f"{name}.json")
    run_ranks(world_size, run_in_order, world_size, dataset, tmp_path)
    for case in cases_of(world_size):
        same = case._replace(placement=None)
        if not same.folder(alone).exists():
            same.folder(alone).mkdir()
            assert call(main, *same.flags(dataset, alone)) == 0
        # Rounding is drawn by the row's number in a process' own table, so bfloat16 differs.
        limit = 3e-2 if case.storage == "bfloat16" else 1e-5
        losses, found = figures(case.folder(tmp_path) / "log.json")
        expected_losses, expected = figures(same.folder(alone) / "log.json")
        assert len(losses) == case.steps
        assert losses == pytest.approx(expected_losses, abs=limit), case
        for name in ("auc", "log_loss", "best_auc"):
            assert found[name] == pytest.approx(expected[name], abs=limit), (case, name)
        assert_same(case.folder(tmp_path) / "run", same.folder(alone) / "run", limit, limit)
