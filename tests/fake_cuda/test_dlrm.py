# SPDX-License-Identifier: Apache-2.0
"""DLRM's training and inference on CUDA: legal in a graph, types, devices."""

import pytest

from cuda_ext.row_rules import ROW_RULES
from tests.fake_cuda.dlrm_steps import PRECISIONS, build, record_step

ROWS = 4096


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "planar"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", ROW_RULES)
def test_nothing_waits_for_the_device_in_a_step(optimizer, precision, storage):
    devices = build(optimizer, embedding_storage=storage)
    recorder = record_step(devices, precision, ROWS)
    assert sum(kernel.kernels for kernel in recorder.kernels()) > 50


@pytest.mark.parametrize("interaction", ["dot", "cat", "dcnv2"])
def test_other_interactions_need_no_wait(interaction):
    record_step(build(interaction_op=interaction), "float16", ROWS)


@pytest.mark.parametrize(
    "settings", [{"batch_norm": True}, {"dropout": 0.5}, {"hash_indices": True}], ids=str
)
def test_other_networks_need_no_wait(settings):
    record_step(build(**settings), "bfloat16", ROWS)
