# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several ranks: any other number loads them, NVIDIA's layout is that of one."""

import pytest
import torch

from dlrm.config import DataConfig, DlrmConfig, OptimizerConfig
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.model import nvidia_checkpoint
from dlrm.model.row_blocks import whole_blocks
from dlrm.model.weights import OpenedCheckpoint
from dlrm.train.checkpoint import restore_state, saved_state
from dlrm.train.step import DlrmTrainStep
from recsys.train.checkpoint import CheckpointError, read_checkpoint
from recsys.train.loop import LoopState
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, Processes
from recsys.train.saving.run_folder import CheckpointFolder
from tests.dlrm import networks
from tests.dlrm.conftest import assert_same_weights
from tests.dlrm.ranks import (
    MODEL,
    SIZES,
    Batches,
    cut_batches,
    distributed,
    distributed_step,
    placement,
    single,
)
from tests.harness import run_ranks

pytestmark = pytest.mark.multiprocess


def config():
    return DlrmConfig(
        model=networks.config(embedding_type="joint_fused", **MODEL),
        data=DataConfig(dataset_type="synthetic_gpu"),
        optimizer=OptimizerConfig(optimizer="rowwise_adagrad"),
    )


def train_on_ranks(rank, placed, folder, first, last):
    """Goes on from the checkpoint in the folder, if there is one, and saves another."""
    model = distributed("joint_fused", placed, rank)
    step = distributed_step(model, config().optimizer, Precision(device_type="cpu"))
    batches = cut_batches(Batches(33, range(first, last)), placed, rank)
    go_on(folder, model, step, batches, Processes(rank, placed.world_size, rank))


def train_alone(folder, first, last):
    model = single("joint_fused")
    step = DlrmTrainStep(model, config().optimizer, Precision(device_type="cpu"))
    go_on(folder, model, step, Batches(33, range(first, last)))


def go_on(folder, model, step, batches, processes=ALONE):
    latest, number = CheckpointFolder(folder).latest(), 0
    if latest is not None:
        checkpoint = read_checkpoint(latest)
        restore_state(checkpoint, model, step)
        number = checkpoint.state["step"]
    for seen in batches.batches():
        step(seen, 0.01)
    number += batches.num_batches
    saved = saved_state(model, step, processes)
    values = LoopState(step=number).to_dict()
    CheckpointFolder(folder).save(number, saved.groups, values, config().to_dict(), False,
                                  shards=saved.shards, processes=processes)  # fmt: skip


def test_runs_go_on_with_other_numbers_of_ranks(tmp_path):
    folder = tmp_path / "changing"
    run_ranks(2, train_on_ranks, placement("mixed", 2), folder, 0, 2)
    names = {p.name for p in (folder / "step_000000002").iterdir()}
    assert {"mlp.safetensors", "embedding_0.safetensors", "embedding_1.safetensors"} <= names
    assert {"embedding_2.0_of_2.safetensors", "embedding_2.1_of_2.safetensors"} <= names
    run_ranks(3, train_on_ranks, placement("mixed", 3), folder, 2, 4)
    train_alone(folder, 4, 5)
    run_ranks(2, train_on_ranks, placement("all by rows", 2), folder, 5, 6)
    alone = tmp_path / "alone"
    train_alone(alone, 0, 6)
    assert read_checkpoint(folder).state["step"] == 6
    assert_same_weights(folder, alone, rtol=1e-5, atol=1e-6)


def test_a_part_that_is_missing_is_found_out(tmp_path):
    run_ranks(2, train_on_ranks, placement("mixed", 2), tmp_path, 0, 1)
    stored = OpenedCheckpoint.open(tmp_path)
    assert stored.table_sizes == SIZES
    step = tmp_path / "step_000000001"
    (step / "embedding_5.1_of_2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"embedding_5.1_of_2.safetensors: missing"):
        OpenedCheckpoint.open(tmp_path).load_into(single("joint_fused"))
    manifest = step / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"embedding_5.1_of_2.safetensors"', '"other.safetensors"'))
    with pytest.raises(CheckpointError, match="1 parts of embedding_5, but they are 2"):
        OpenedCheckpoint.open(tmp_path).load_into(single("joint_fused"))


NAMES = ("mixed", "all by rows", "all on one", "all copies")


def save_on_ranks(rank, world_size, folder):
    """Saves the same model under several placements, each into a folder of the same name."""
    processes = Processes(rank, world_size, rank)
    for name in NAMES:
        model = distributed("joint_fused", placement(name, world_size), rank)
        parent = folder / name.replace(" ", "_")
        if rank == 0:
            parent.mkdir()
        processes.barrier()
        for step in (3, 7):  # the second replaces the first
            nvidia_checkpoint.save(parent / "saved", model, 1, step, MODEL, processes)


def load_and_save_on_ranks(rank, world_size, source, folder):
    placed = placement("mixed", world_size)
    model = distributed("joint_fused", placed, rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    OpenedCheckpoint.open(source).load_into(model)
    processes = Processes(rank, world_size, rank)
    nvidia_checkpoint.save(folder / "saved", model, 1, 7, MODEL, processes)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_are_those_of_one_process(tmp_path):
    alone = tmp_path / "alone"
    nvidia_checkpoint.save(alone / "saved", single("joint_fused"), 1, 7, MODEL)
    expected = contents(alone / "saved")
    assert len(expected) == 6 * 2 + 4
    run_ranks(2, save_on_ranks, 2, tmp_path)
    for name in NAMES:
        folder = tmp_path / name.replace(" ", "_")
        assert [path.name for path in folder.iterdir()] == ["saved"]
        assert contents(folder / "saved") == expected, name
    again = tmp_path / "again"
    again.mkdir()
    source = tmp_path / "all_by_rows" / "saved"
    run_ranks(3, load_and_save_on_ranks, 3, source, again)
    assert contents(again / "saved") == expected


def check_blocks(rank, world_size):
    """Blocks smaller than the table, more ranks than rows, a last block that is cut."""
    for rows in (1, 2, 5, 29, 64):
        for table in (0, 1):
            placed = Placement(world_size, (TablePlacement(rows, "rows"),) * 2)
            whole = torch.arange(rows * 3, dtype=torch.float32).view(rows, 3)
            shard = slice(placed.first_row(table, rank), rows, world_size)
            for block_rows in (1, 4, 7, 100):
                found = dict(whole_blocks(shard, rank, whole[shard], block_rows))
                mine = range(rank * block_rows, rows, world_size * block_rows)
                assert list(found) == list(mine)
                for start, block in found.items():
                    assert torch.equal(block, whole[start : start + block_rows])


def test_blocks_of_a_spread_table():
    run_ranks(3, check_blocks, 3)
