# SPDX-License-Identifier: Apache-2.0
"""A DLRM that does not fit in memory is refused before it is allocated."""

import dataclasses
import re

import pytest
import torch

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import DlrmConfig
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.model.memory import TableRows, trained_memory
from dlrm.model.network import Dlrm
from dlrm.model.weights import DlrmCheckpoint
from dlrm.scripts import main
from dlrm.train.step import DlrmTrainStep
from recsys.train.memory import OutOfMemoryError
from recsys.train.optimizers.precision import Precision
from tests import harness
from tests.dlrm.conftest import SMALL_MODEL
from tests.harness import assert_tells, refusal

WIDE = ("--dataset_type=synthetic_gpu", "--embedding_dim=1024", "--bottom_mlp_sizes=16,1024")
ROWS = 2_000_000_000
SIZES = (3, 20_000, 400)


@pytest.mark.parametrize("mode", ["train", "test", "inference_benchmark"])
def test_what_needs_the_memory_is_named(program, mode):
    tables = f"--synthetic_dataset_table_sizes=5,{ROWS},{ROWS // 2}"
    message = program.refused(*WIDE, tables, f"--mode={mode}", "--optimizer=adam")
    assert harness.read_log(program.log_path) == []
    assert_tells(message, "--max_table_size", "--hash_indices")
    if mode == "train":
        assert re.findall(r"[\d.]+ TiB", message)[:3] == ["33.5 TiB", "11.2 TiB", "22.4 TiB"]
        assert_tells(message, "cat_1 22.4 TiB, cat_2 11.2 TiB, cat_0")
        assert_tells(message, "--embedding_storage bfloat16", "--optimizer sgd")
    else:
        assert re.findall(r"[\d.]+ TiB", message)[:2] == ["11.2 TiB", "11.2 TiB"]
        assert "optimizer" not in message


@pytest.mark.multiprocess
def test_the_processes_of_a_machine_count_together(tmp_path):
    arguments = (*SMALL_MODEL, *WIDE, f"--synthetic_dataset_table_sizes={ROWS},{ROWS}")
    arguments += (f"--log_path={tmp_path / 'log'}",)
    planned = harness.call_on_ranks(2, main, *arguments, status=2)
    assert_tells(planned, "15,258.8 GiB", "table 0 7,629.4 GiB, table 1 7,629.4 GiB")
    file = tmp_path / "placement.json"
    Placement(2, tuple(TablePlacement(ROWS, "whole", rank) for rank in range(2))).save(file)
    told = harness.call_on_ranks(2, main, *arguments, f"--placement={file}", status=2)
    assert_tells(told, 2, "14.9 TiB", 7.5)


def test_a_checkpoint_that_does_not_fit_is_not_deployed(trained):
    stored = DlrmCheckpoint.open(trained)
    assert stored.load().embeddings.table_sizes == stored.table_sizes
    larger = dataclasses.replace(stored, table_sizes=(*stored.table_sizes[1:], 10**12))
    with refusal("table 3 29.1 TiB", kind=OutOfMemoryError):
        larger.load()


@pytest.mark.parametrize("rule", ROW_RULES)
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("id_statistics", [0, 1000])
def test_the_count_is_what_training_allocates(rule, storage, l2, id_statistics):
    values = {"dataset_type": "synthetic_gpu", "optimizer": rule, "embedding_storage": storage}
    values |= {"optimized_mlp": False, "embedding_l2": l2, "id_statistics": id_statistics}
    config = DlrmConfig.from_dict(values)
    model = Dlrm(config.model, SIZES)
    step = DlrmTrainStep(model, config.optimizer, Precision(device_type="cpu"))
    tensors = [*model.parameters(), *model.buffers(), *step.mlp_optimizer.state().values()]
    tensors += [t for state in step.embedding_optimizer.state for t in state.values()]
    if model.id_statistics is not None:
        model.id_statistics.fit(torch.zeros(4, len(SIZES), dtype=torch.int64), torch.ones(4))
        tensors.append(model.id_statistics.of_others)
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    gradients = sum(parameter.numel() * 4 for parameter in model.mlp_parameters())
    if l2:  # float32, and the number of each row
        gradients += sum(SIZES) * (config.model.row_dim + 1) * 4
    needed = trained_memory(config, TableRows.of_model(config.model, "abc", SIZES), len(SIZES))
    counted = needed.total - needed.parts.get("float32 copies", 0)
    assert counted == pytest.approx(allocated + gradients, rel=1e-3)
