# SPDX-License-Identifier: Apache-2.0
"""Several ranks train and score as one process: every dataset type, placement and embedding type.

All runs of a number of ranks share one process group: starting processes is what takes time.
"""

import itertools
from pathlib import Path
from typing import get_args

import pytest

from dlrm.config import (
    DataConfig,
    DatasetType,
    DlrmConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.recipe import DlrmRecipe
from recsys.train.processes import ALONE, Processes
from recsys.train.run import Run
from tests.dlrm.conftest import CARDINALITIES, NUM_NUMERICAL, ROWS
from tests.dlrm.ranks import figures
from tests.harness import run_ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

DATASET_TYPES = get_args(DatasetType)
EMBEDDING_TYPES = ("joint", "joint_sparse", "joint_fused")
KINDS = {
    "planned": None,
    "mixed": ("replicate", 0, "rows", 1),
    "copies": ("replicate",) * 4,
    "whole": (1, 0, 1, 0),
    "on one": (1,) * 4,
    "rows": ("rows",) * 4,
}
BATCH, STEPS = 999, 6  # not a multiple of the ranks


def start(folder, dataset, dataset_type, embedding_type, placement=None, processes=ALONE):
    """Sets up a small run that begins with the weights in `folder / "first"`."""
    first = folder / "first"
    data = DataConfig(
        dataset=str(dataset),
        dataset_type=dataset_type,
        batch_size=BATCH,
        test_batch_size=333,
        shuffle_batch_order=dataset_type in ("split", "parquet"),
        synthetic_dataset_num_entries=ROWS["train"],
        synthetic_dataset_table_sizes=CARDINALITIES,
        synthetic_dataset_dir=str(folder / "synthetic"),
    )
    config = DlrmConfig(
        data=data,
        model=ModelConfig(
            num_numerical_features=NUM_NUMERICAL,
            embedding_dim=8,
            bottom_mlp_sizes=(16, 8),
            top_mlp_sizes=(16, 1),
            embedding_type=embedding_type,
            optimized_mlp=False,
        ),
        optimizer=OptimizerConfig(lr=0.2, warmup_steps=0, decay_start_step=None, decay_steps=0),
        run=RunConfig(
            base_device="cpu",
            num_threads=1,
            print_freq=1,
            log_path=str(folder / log_name(dataset_type, embedding_type, placement)),
            placement=None if placement is None else str(folder / f"{placement}.json"),
            load_checkpoint_path=str(first) if first.exists() else None,
            save_checkpoint_path=None if first.exists() else str(first),
            max_steps=STEPS if first.exists() else 1,
        ),
        explicit=frozenset({"embedding_type"}),
    )
    return Run.start(DlrmRecipe.open, config, lambda _line: None, processes)


def log_name(dataset_type, embedding_type, placement):
    return f"{dataset_type} {embedding_type} {placement}.json"


def run_cases(rank, world_size, folder, dataset, cases):
    """Runs on a rank; a placement of None is planned."""
    for dataset_type, embedding_type, placement in cases:
        processes = Processes(rank, world_size, rank)
        start(folder, dataset, dataset_type, embedding_type, placement, processes).fit()


@pytest.fixture(scope="module")
def alone(tmp_path_factory, dataset):
    """A folder with weights to begin with, and the logs of one process."""
    folder = tmp_path_factory.mktemp("alone")
    start(folder, dataset, "split", "joint").fit()
    for kinds in itertools.product(DATASET_TYPES, EMBEDDING_TYPES):
        start(folder, dataset, *kinds).fit()
    return folder


def write_placements(folder: Path, world_size: int) -> None:
    for name, kinds in KINDS.items():
        if kinds is None:
            continue
        tables = [
            TablePlacement(n, k) if isinstance(k, str) else TablePlacement(n, "whole", k)
            for n, k in zip(CARDINALITIES, kinds, strict=True)
        ]
        Placement(world_size, tuple(tables)).save(folder / f"{name}.json")


def assert_same_figures(cases, folder, alone):
    for case in cases:
        dataset_type, embedding_type, _ = case
        losses, found = figures(folder / log_name(*case))
        expected_losses, expected = figures(alone / log_name(dataset_type, embedding_type, None))
        assert len(losses) == STEPS
        assert losses == pytest.approx(expected_losses, abs=1e-5), case
        assert found["auc"] == pytest.approx(expected["auc"], abs=1e-5), case
        assert found["log_loss"] == pytest.approx(expected["log_loss"], abs=1e-5), case


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_train_on_every_dataset_as_one_process(dataset, alone, tmp_path, world_size):
    names = [name if kinds else None for name, kinds in KINDS.items()]
    if world_size == 4:
        names = ["mixed", "rows"]
    # Every pair of dataset type, placement and embedding type meets; all triples would take long.
    cases = [
        (dataset_type, EMBEDDING_TYPES[(i + j) % 3], name)
        for i, dataset_type in enumerate(DATASET_TYPES)
        for j, name in enumerate(names)
    ]
    if world_size == 2:
        assert {case[1:] for case in cases} == set(itertools.product(EMBEDDING_TYPES, names))
    (tmp_path / "first").symlink_to(alone / "first")
    (tmp_path / "synthetic").symlink_to(alone / "synthetic")
    write_placements(tmp_path, world_size)
    run_ranks(world_size, run_cases, world_size, tmp_path, dataset, cases)
    assert_same_figures(cases, tmp_path, alone)
