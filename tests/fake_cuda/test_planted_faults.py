# SPDX-License-Identifier: Apache-2.0
"""Faults put into the step: each must be refused, or be seen in the budget."""

import pytest
import torch

from bert4rec.data.batches import TrainBatch
from cuda_ext import ops
from dlrm.data.batch import NarrowBatch
from dlrm.nn.mlp import Mlp
from dlrm.train.step import LocalGradients
from recsys.train.optimizers import rows
from tests.fake_cuda.device import Stream
from tests.fake_cuda.dlrm_steps import build, load_batch, record_step
from tests.fake_cuda.recorder import DeviceWaitError, Recorder
from tests.fake_cuda.test_bert4rec import record_steps
from tests.fake_cuda.test_budget import budgets, recorded

CASE = "dlrm sgd float16 32768"


def with_change(monkeypatch, change):
    """Makes every MLP return what `change` makes of its result."""
    forward = Mlp.forward
    monkeypatch.setattr(Mlp, "forward", lambda mlp, x: change(forward(mlp, x)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y * y.sum().item(), "the host reads a result"),
        (lambda y: y[y.mean(1) > 0], "a shape that depends on data"),
        (lambda y: y + torch.ones(y.shape[1]).to(y.device), "tensors of the host"),
        (lambda y: y + y[:, [0]], "tensors of the host"),
        (lambda y: y.cpu().to(y.device), "tensors of the host"),
    ],
)
def test_a_wait_is_refused(change, message, monkeypatch):
    with_change(monkeypatch, change)
    with pytest.raises(DeviceWaitError, match=message):
        record_step(build(), "float16", 1024)


def test_a_copy_from_memory_that_is_not_pinned_is_refused(monkeypatch):
    monkeypatch.setattr(NarrowBatch, "pinned", lambda batch: batch)
    with pytest.raises(DeviceWaitError, match=r"dlrm/data/batch.py"):
        record_step(build(), "float16", 1024)


def test_an_added_kernel_is_seen_in_the_budget(monkeypatch):
    with_change(monkeypatch, lambda y: y * 1)
    assert recorded(CASE) != budgets()[CASE]


def test_a_cast_of_the_gradients_of_rows_is_seen_in_the_budget(monkeypatch):
    update_rows = rows.ops.update_rows

    def with_cast(*arguments, **options):
        *before, gradients, step = arguments
        update_rows(*before, gradients.to(torch.float32), step, **options)

    monkeypatch.setattr(rows.ops, "update_rows", with_cast)
    assert recorded(CASE) != budgets()[CASE]


def test_a_batch_that_is_read_before_it_is_copied_is_refused(monkeypatch):
    monkeypatch.setattr(Stream, "wait_event", lambda *_: None)
    with (
        Recorder() as recorder,
        pytest.raises(DeviceWaitError, match=r"stack_ids: .* has not waited"),
    ):
        load_batch(recorder, 1024)


def test_a_batch_of_bert4rec_that_is_read_before_it_is_copied_is_refused(monkeypatch):
    monkeypatch.setattr(Stream, "wait_event", lambda *_: None)
    with pytest.raises(DeviceWaitError, match=r"has not waited, at bert4rec"):
        record_steps("bfloat16")


def test_a_batch_of_bert4rec_that_is_not_pinned_is_refused(monkeypatch):
    monkeypatch.setattr(TrainBatch, "pinned", lambda batch: batch)
    with pytest.raises(
        DeviceWaitError, match=r"tensors of the host, .* at bert4rec/data/batches.py"
    ):
        record_steps("bfloat16")


def test_an_update_that_does_not_wait_for_the_sort_is_refused(monkeypatch):
    monkeypatch.setattr(rows.SortedRows, "join", lambda own: (own._rows, own._positions))
    with pytest.raises(DeviceWaitError, match=r"update_rows: .* has not waited"):
        record_step(build(), "bfloat16", 1024)


def test_an_update_that_does_not_wait_for_the_gradients_of_weights_is_refused(monkeypatch):
    monkeypatch.setattr(LocalGradients, "reduce", lambda _: None)
    with pytest.raises(DeviceWaitError, match=r"_fused_sgd_: .* has not waited"):
        record_step(build(), "bfloat16", 1024)


def test_memory_that_is_freed_while_another_stream_reads_it_is_refused(monkeypatch):
    after = ops.SideStream.after
    monkeypatch.setattr(ops.SideStream, "after", lambda stream, *_: after(stream))
    with pytest.raises(DeviceWaitError, match=r"may get the memory of the .* of "):
        record_step(build(), "bfloat16", 1024)


def test_a_sort_that_does_not_wait_for_its_rows_is_refused(monkeypatch):
    start = rows.SortedRows.__init__

    def start_at_once(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stream, "wait_stream", lambda *_: None)
            start(*arguments)

    monkeypatch.setattr(rows.SortedRows, "__init__", start_at_once)
    with pytest.raises(DeviceWaitError, match=r"sort_rows: .* has not waited"):
        record_step(build(), "bfloat16", 1024)
