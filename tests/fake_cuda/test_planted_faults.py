# SPDX-License-Identifier: Apache-2.0
"""Faults put into the step, one of each kind: each is refused, or seen in the budget."""

import pytest
import torch
import torch.distributed as dist

from bert4rec.data.batches import TrainBatch
from cuda_ext import ops
from dlrm.data.batch import NarrowBatch
from dlrm.distributed import batches
from dlrm.distributed.exchange import VectorExchange
from dlrm.distributed.gradients import AllReducedGradients, GradientBuckets
from dlrm.distributed.network import DistributedDlrm
from dlrm.nn.mlp import Mlp
from recsys.train.optimizers import rows
from tests.fake_cuda.device import Stream
from tests.fake_cuda.dlrm_steps import build, load_batch, record_step
from tests.fake_cuda.recorder import DeviceWaitError, Recorder
from tests.fake_cuda.test_bert4rec import record_steps
from tests.fake_cuda.test_budget import BUDGETS, RANK_BUDGETS, totals, totals_of_rank
from tests.fake_cuda.test_ranks import record_ranks

CASE = ("sgd", "bfloat16")
ROWS = 4091


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
        (lambda y: y.cpu().to(y.device), "tensors of the host"),
    ],
)
def test_a_wait_is_refused(change, message, monkeypatch):
    with_change(monkeypatch, change)
    with pytest.raises(DeviceWaitError, match=message):
        record_step(build(), "float16", 1024)


def test_an_added_kernel_is_seen_in_the_budget(monkeypatch):
    with_change(monkeypatch, lambda y: y * 1)
    assert totals(record_step(build(), "bfloat16", 65536)) != BUDGETS[CASE]


def test_a_copy_of_vectors_is_seen_in_the_budget_of_a_rank(split_of, monkeypatch):
    send = VectorExchange.send
    monkeypatch.setattr(VectorExchange, "send", lambda own, vectors: send(own, vectors.clone()))
    assert totals_of_rank(*CASE, split_of(65536)) != RANK_BUDGETS[CASE]


@pytest.mark.parametrize(
    ("batch", "step", "place"),
    [
        (NarrowBatch, lambda _: record_step(build(), "float16", 1024), "dlrm/data/batch.py"),
        (TrainBatch, lambda _: record_steps("bfloat16"), "bert4rec/data/batches.py"),
        (
            batches._PlannedBatch,
            lambda split_of: record_ranks(split_of(ROWS), "bfloat16"),
            "dlrm/distributed/batches.py",
        ),
    ],
)
def test_a_batch_that_is_not_pinned_is_refused(batch, step, place, split_of, monkeypatch):
    monkeypatch.setattr(batch, "pinned", lambda batch: batch)
    with pytest.raises(DeviceWaitError, match=f"tensors of the host, .* at {place}"):
        step(split_of)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda: load_batch(1024), r"stack_ids: .* has not waited"),
        (lambda: record_steps("bfloat16"), r"has not waited, at bert4rec"),
    ],
)
def test_a_batch_that_is_read_before_it_is_copied_is_refused(step, message, monkeypatch):
    monkeypatch.setattr(Stream, "wait_event", lambda *_: None)
    with Recorder(), pytest.raises(DeviceWaitError, match=message):
        step()


def test_an_update_that_does_not_wait_for_the_sort_is_refused(monkeypatch):
    monkeypatch.setattr(rows.SortedRows, "join", lambda own: (own._rows, own._positions))
    with pytest.raises(DeviceWaitError, match=r"update_rows: .* has not waited"):
        record_step(build(), "bfloat16", 1024)


def test_memory_that_is_freed_while_another_stream_reads_it_is_refused(monkeypatch):
    after = ops.SideStream.after
    monkeypatch.setattr(ops.SideStream, "after", lambda stream, *_: after(stream))
    with pytest.raises(DeviceWaitError, match=r"may get the memory of the .* of "):
        record_step(build(), "bfloat16", 1024)


def test_a_barrier_in_a_step_of_a_rank_is_refused(split_of, monkeypatch):
    monkeypatch.setattr(AllReducedGradients, "reduce", lambda _: dist.barrier())
    with pytest.raises(DeviceWaitError, match="other ranks"):
        record_ranks(split_of(ROWS), "bfloat16")


def test_a_search_for_looked_up_rows_is_refused(split_of, monkeypatch):
    monkeypatch.setattr(ops, "skips_absent_rows", lambda _: False)
    with pytest.raises(DeviceWaitError, match=r"nonzero: a shape that depends on data, at dlrm/d"):
        record_ranks(split_of(ROWS), "bfloat16")


def test_a_sum_that_differs_from_run_to_run_is_refused(split_of, monkeypatch):
    def add(rows, gradients, num_table_rows):
        total = gradients.new_zeros(num_table_rows, gradients.shape[1], dtype=torch.float32)
        return total.index_add_(0, rows, gradients.float())

    monkeypatch.setattr(ops, "sum_by_row", add)
    with pytest.raises(AssertionError, match="index_add_'}: sums differ from run to run"):
        record_ranks(split_of(ROWS), "bfloat16")


def test_a_type_that_nccl_lacks_is_refused(split_of, monkeypatch):
    def broadcast(model):
        for table in model.sharded.replicated.stored_tables():
            dist.broadcast(table.values.to(torch.int16), 0)

    monkeypatch.setattr(DistributedDlrm, "broadcast_replicated", broadcast)
    with pytest.raises(AssertionError, match=r"NCCL has no torch\.int16"):
        record_ranks(split_of(ROWS), "bfloat16")


def test_collectives_in_another_order_on_one_rank_are_refused(split_of, monkeypatch):
    hold = GradientBuckets.hold
    monkeypatch.setattr(GradientBuckets, "hold", lambda own: dist.get_rank() or hold(own))
    with pytest.raises(AssertionError, match="NCCL hangs"):
        record_ranks(split_of(ROWS), "bfloat16")


def test_vectors_that_are_read_before_they_arrive_are_refused(split_of, monkeypatch):
    monkeypatch.setattr(VectorExchange, "wait", lambda _: None)
    with pytest.raises(DeviceWaitError, match="has not waited, at dlrm/distributed/e"):
        record_ranks(split_of(ROWS), "bfloat16")


def test_gradients_that_nobody_waits_for_are_refused(split_of, monkeypatch):
    monkeypatch.setattr(AllReducedGradients, "reduce", lambda _: None)
    with pytest.raises(AssertionError, match="nobody waits for a collective"):
        record_ranks(split_of(ROWS), "bfloat16")
