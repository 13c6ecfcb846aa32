# SPDX-License-Identifier: Apache-2.0
"""DLRM's training and inference on CUDA: legal in a graph, types, devices."""

import threading

import pytest
import torch

from dlrm.nn.embedding import read_tables
from dlrm.train.graphs import GraphedInference, GraphedTrainStep
from tests.fake_cuda.dlrm_steps import PRECISIONS, build, load_batch, record_step
from tests.fake_cuda.recorder import Recorder

ROWS = 4096


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({"optimizer": "adagrad", "embedding_storage": "bfloat16"}, "float32"),
        ({"optimizer": "adam", "embedding_l2": 0.1}, "float16"),
        ({"interaction_op": "dot", "batch_norm": True}, "float16"),
        ({"interaction_op": "cat", "dropout": 0.5}, "float16"),
        ({"interaction_op": "dcnv2", "hash_indices": True}, "float16"),
    ],
    ids=str,
)
def test_nothing_waits_for_the_device_in_a_step(settings, precision):
    """The budgets follow the other optimizers and precisions."""
    recorder = record_step(build(**settings), precision, ROWS)
    assert sum(kernel.kernels for kernel in recorder.kernels()) > 50


@pytest.mark.parametrize(
    ("precision", "rows"), [("float32", 1), ("float16", 64), ("bfloat16", 4096)]
)
def test_inference_needs_no_wait(precision, rows):
    model = build().model.eval()
    with Recorder(), torch.no_grad(), PRECISIONS[precision].autocast():
        batch = load_batch(rows)
        logits = model(batch.numerical, batch.ids)
    assert logits.shape == (rows,)
    assert logits.is_cuda


def test_inference_is_replayed_from_a_graph_for_each_batch_size():
    model = build().model.eval()
    calls = []

    def predict(batch):
        calls.append((len(batch), torch.cuda.is_current_stream_capturing()))
        return model(batch.numerical, batch.ids)

    graphed = GraphedInference(predict)
    with Recorder(), torch.no_grad(), PRECISIONS["bfloat16"].autocast():
        for rows in (64, 64, 1, 64, 1, 1):
            assert graphed(load_batch(rows)).shape == (rows,)
    assert calls == [(64, False), (64, True), (1, False), (1, True)]


def test_bfloat16_tables_are_read_and_drawn_with_little_more_than_float32_ones_take():
    """The largest table has a quarter of the rows."""
    embeddings = build(embedding_storage="bfloat16").model.embeddings
    table_bytes = 4 * embeddings.weight.numel()
    with Recorder() as recorder:
        joined = read_tables(embeddings)
    assert sum(table.numel() for table in joined.values()) == embeddings.weight.numel()
    assert recorder.allocated_bytes <= 1.01 * table_bytes
    with Recorder() as recorder:
        embeddings.reset_parameters()
    assert recorder.allocated_bytes <= 5 * table_bytes  # of all tables, one after the other


def captured_step(in_capture, monkeypatch):
    """Takes steps until one is captured, in which `in_capture` is called."""
    step = build().train_step(PRECISIONS["float16"])
    update = step.update

    def with_call(batch):
        if torch.cuda.is_current_stream_capturing():
            in_capture()
        return update(batch)

    monkeypatch.setattr(step, "update", with_call)
    graphed = GraphedTrainStep(step)
    with Recorder():
        for _ in range(5):
            loss = graphed(load_batch(64), 0.1)
    assert loss.shape == ()


def test_a_reader_may_pin_memory_while_the_step_is_captured(monkeypatch):
    pinned = []

    def read_in_a_thread():
        reader = threading.Thread(target=lambda: pinned.append(torch.zeros(3).pin_memory()))
        reader.start()
        reader.join()

    captured_step(read_in_a_thread, monkeypatch)
    assert len(pinned) == 1


@pytest.mark.parametrize(
    "call", [lambda: torch.cuda.synchronize(), lambda: torch.zeros(3).pin_memory()]
)
def test_a_call_that_waits_breaks_the_capture(call, monkeypatch):
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        captured_step(call, monkeypatch)
