# SPDX-License-Identifier: Apache-2.0
"""DLRM's training on several GPUs, rank by rank: nothing waits, ranks agree on collectives."""

import contextlib

import pytest
import torch

from dlrm.distributed.placement import Placement, TablePlacement
from tests.fake_cuda.dlrm_steps import PRECISIONS, SPEC
from tests.fake_cuda.ranks import WORLD_SIZE, batches_of, build_rank, rank_of, record_rank
from tests.fake_cuda.recorder import Recorder

ROWS = 4091  # not a multiple of the ranks
FIRST_AND_LAST = (0, WORLD_SIZE - 1)
ATOMIC = {"aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_"}
"""Ops that add to one row from many threads, in any order; where rows repeat, bits differ."""


def record_ranks(dataset, precision, *, ranks=FIRST_AND_LAST, **settings):
    """Records a step of each of these ranks; returns what they asked of the others."""
    recorded = []
    for number in ranks:
        with rank_of(number) as rank:
            recorder = record_rank(build_rank(rank, dataset, ROWS, **settings), precision)
        kernels = recorder.kernels()
        assert sum(kernel.kernels for kernel in kernels) > 50
        unordered = ATOMIC & {kernel.op for kernel in kernels}
        assert not unordered, f"{unordered}: sums differ from run to run"
        recorded.append(rank)
        assert rank.collectives == recorded[0].collectives, "NCCL hangs: collectives differ"
    return recorded


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({"optimizer": "adam", "embedding_storage": "bfloat16"}, "float32"),
        ({"interaction_op": "cat"}, "float16"),
        ({"interaction_op": "dcnv2", "hash_indices": True}, "float16"),
    ],
    ids=str,
)
def test_nothing_waits_in_a_step_of_a_rank(settings, precision, split_of):
    record_ranks(split_of(ROWS), precision, **settings)


@pytest.mark.parametrize("kind", ["replicate", "rows", "on one rank"])
def test_other_placements_need_no_wait(kind, split_of, tmp_path):
    whole = kind == "on one rank"
    tables = [
        TablePlacement(n, "whole" if whole else kind, 0 if whole else None)
        for n in SPEC.table_sizes
    ]
    file = tmp_path / "placement.json"
    Placement(WORLD_SIZE, tuple(tables)).save(file)
    record_ranks(split_of(ROWS), "float16", run={"placement": str(file)})


def test_each_rank_sends_what_the_others_expect(split_of):
    ranks = record_ranks(split_of(ROWS), "bfloat16", ranks=range(WORLD_SIZE))
    for exchange in range(2):  # of vectors, of their gradients
        receives, sends = zip(*(rank.exchanges[exchange] for rank in ranks), strict=True)
        assert [list(column) for column in zip(*sends, strict=True)] == list(receives)


def test_vectors_leave_first_and_the_sums_of_gradients_after_their_own(split_of):
    """NCCL has one queue, and backward waits for the gradients of vectors."""
    with rank_of(0) as rank:
        devices = build_rank(rank, split_of(ROWS), ROWS)
        before = len(rank.collectives)
        record_rank(devices, "bfloat16")
        top, bottom = (
            sum(p.numel() for p in mlp.parameters())
            for mlp in (devices.model.top_mlp, devices.model.bottom_mlp)
        )
    exchange = ("all_to_all_single", "torch.bfloat16", "torch.bfloat16")
    sums = [("all_reduce", numbers, "torch.float32") for numbers in (top, bottom, 1)]
    assert rank.collectives[before:][:5] == [exchange, exchange, *sums]


def test_the_next_batch_is_copied_beside_the_step(split_of):
    """Batches come by a stream of their own, and no step races with them."""
    batch_size, steps = 512, []
    with rank_of(0) as rank:
        devices = build_rank(rank, split_of(ROWS), batch_size)
        step = devices.train_step(PRECISIONS["bfloat16"])
        with Recorder() as recorder, contextlib.closing(batches_of(devices)) as batches:
            for batch in batches:
                copied = [
                    k.kernels
                    for k in recorder.kernels()
                    if k.op == "aten::_to_copy" and k.is_beside
                ]
                steps.append((copied, step(batch, 0.1)))
    assert [copied for copied, _ in steps] == [[5 * min(n + 2, 8)] for n in range(8)]


def test_evaluation_needs_no_wait(split_of):
    with rank_of(WORLD_SIZE - 1) as rank:
        devices = build_rank(rank, split_of(ROWS), ROWS)
        model = devices.model.eval()
        with Recorder() as recorder, torch.no_grad(), PRECISIONS["bfloat16"].autocast():
            for batch in batches_of(devices):
                logits = model(batch.numerical, batch.ids)
    assert logits.shape == (ROWS // WORLD_SIZE,)
    assert logits.is_cuda
    assert sum(k.kernels for k in recorder.kernels() if k.op == "c10d::alltoall_base_") == 1
