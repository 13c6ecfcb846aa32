# SPDX-License-Identifier: Apache-2.0
"""Faults put into the step, one for each rule of the fake device: each is refused."""

import pytest
import torch
import torch.distributed as dist

from cuda_ext import ops
from dlrm.data.batch import NarrowBatch
from dlrm.distributed.gradients import AllReducedGradients, GradientBuckets
from dlrm.distributed.network import DistributedDlrm
from dlrm.nn.mlp import Mlp
from tests.fake_cuda.device import Stream
from tests.fake_cuda.dlrm_steps import build, record_step
from tests.fake_cuda.test_ranks import record_ranks

ROWS = 4091


def on_one_gpu(_):
    record_step(build(), "bfloat16", 1024)


def on_a_rank(split_of):
    record_ranks(split_of(ROWS), "bfloat16")


def mlp_with(change):
    """Returns an MLP's forward that gives what `change` makes of its result."""
    forward = Mlp.forward
    return lambda mlp, x: change(forward(mlp, x))


def broadcast_int16(model):
    for table in model.sharded.replicated.stored_tables():
        dist.broadcast(table.to(torch.int16), 0)


def sum_in_any_order(rows, gradients, num_table_rows):
    total = gradients.new_zeros(num_table_rows, gradients.shape[1], dtype=torch.float32)
    return total.index_add_(0, rows, gradients.float())


AFTER, HOLD = ops.SideStream.after, GradientBuckets.hold

FAULTS = {
    on_one_gpu: [
        (Mlp, "forward", mlp_with(lambda y: y * y.sum().item()), "the host reads a result"),
        (Mlp, "forward", mlp_with(lambda y: y[y.mean(1) > 0]), "a shape that depends on data"),
        (
            NarrowBatch,
            "pinned",
            lambda own: own,
            "tensors of the host, .* at recsys/train/memory.py",
        ),
        (Stream, "wait_event", lambda *_: None, "stack_ids: .* has not waited"),
        (
            *(ops.SideStream, "after", lambda stream, *_: AFTER(stream)),
            "may get the memory of the .* of ",
        ),
    ],
    on_a_rank: [
        (AllReducedGradients, "reduce", lambda _: dist.barrier(), "other ranks"),
        (AllReducedGradients, "reduce", lambda _: None, "nobody waits for a collective"),
        (ops, "sum_by_row", sum_in_any_order, "index_add_'}: sums differ from run to run"),
        (
            *(DistributedDlrm, "broadcast_replicated", broadcast_int16),
            r"NCCL has no torch\.int16",
        ),
        (
            *(GradientBuckets, "hold", lambda own: dist.get_rank() or HOLD(own)),
            "NCCL hangs: collectives differ",
        ),
    ],
}
"""Step -> what is changed in it, the new form, and the words that refuse it."""


@pytest.mark.parametrize(
    ("step", "owner", "name", "changed", "message"),
    [(step, *fault) for step, faults in FAULTS.items() for fault in faults],
)
def test_a_fault_is_refused(step, owner, name, changed, message, split_of, monkeypatch):
    monkeypatch.setattr(owner, name, changed)
    with pytest.raises(AssertionError, match=message):
        step(split_of)
