# SPDX-License-Identifier: Apache-2.0
"""A checkpoint made on some number of ranks is loaded by any other, tables and optimizers alike."""

import pytest
import torch

from dlrm.config import (
    DataConfig,
    DlrmConfig,
    OptimizerConfig,
)
from dlrm.model.weights import OpenedCheckpoint
from dlrm.train.checkpoint import restore_state, saved_state
from dlrm.train.step import DlrmTrainStep
from recsys.train.checkpoint import CheckpointError, read_checkpoint
from recsys.train.loop import LoopState
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, Processes
from recsys.train.saving.run_folder import CheckpointFolder
from tests.dlrm.ranks import (
    SIZES,
    batch,
    cut_batches,
    distributed,
    distributed_step,
    model_config,
    placement,
    single,
)
from tests.harness import run_ranks

pytestmark = pytest.mark.multiprocess

ROWS = 33


class Batches:
    """Batches of all ranks from a number on."""

    batch_size = ROWS

    def __init__(self, first, last):
        self.numbers = range(first, last)
        self.num_batches = len(self.numbers)

    def batches(self, epoch=0, start=0):
        for number in self.numbers:
            yield batch(ROWS, number)


def config():
    return DlrmConfig(
        model=model_config("joint_fused"),
        data=DataConfig(dataset_type="synthetic_gpu"),
        optimizer=OptimizerConfig(optimizer="rowwise_adagrad"),
    )


def train_on_ranks(rank, placed, folder, first, last):
    """Goes on from the checkpoint in the folder, if there is one, and saves another."""
    model = distributed("joint_fused", placed, rank)
    step = distributed_step(model, config().optimizer, Precision(device_type="cpu"))
    assert resume(folder, model, step) == first
    source = cut_batches(Batches(first, last), placed, rank)
    for seen in source.batches():
        step(seen, 0.01)
    processes = Processes(rank, placed.world_size, rank)
    save(folder, model, step, last, processes)


def resume(folder, model, step):
    """Goes on from the latest checkpoint in the folder; returns its step, 0 where there is none."""
    latest = CheckpointFolder(folder).latest()
    if latest is None:
        return 0
    checkpoint = read_checkpoint(latest)
    restore_state(checkpoint, model, step)
    return checkpoint.state["step"]


def save(folder, model, step, number, processes=ALONE):
    saved = saved_state(model, step, processes)
    values = LoopState(step=number).to_dict()
    CheckpointFolder(folder).save(number, saved.groups, values, config().to_dict(), False,
                                  shards=saved.shards, processes=processes)  # fmt: skip


def train_alone(folder, first, last):
    model = single("joint_fused")
    step = DlrmTrainStep(model, config().optimizer, Precision(device_type="cpu"))
    resume(folder, model, step)
    for seen in Batches(first, last).batches():
        step(seen, 0.01)
    save(folder, model, step, last)


def tensors(folder):
    checkpoint = read_checkpoint(folder)
    return {
        f"{group}/{name}": tensor
        for group in sorted(checkpoint.groups())
        for name, tensor in checkpoint.tensors(group).items()
    }


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
    found, expected = tensors(folder), tensors(alone)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


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
