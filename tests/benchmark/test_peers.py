# SPDX-License-Identifier: Apache-2.0
"""Peers compute the same as ours, a wrong result is found before it is timed."""

import contextlib

import pytest
import torch

from benchmark.cases import interaction_kernels
from benchmark.cases.embedding_kernels import EmbeddingKernels
from benchmark.cases.interaction_kernels import InteractionKernels
from benchmark.cases.sparse_step_kernels import SparseStepKernels
from benchmark.cases.train_step_distributed import check_training as check_sides
from benchmark.cases.train_step_distributed import our_side
from benchmark.peers.dlrm import (
    PYTORCH,
    SIZES,
    build_candidates,
    check_training,
    forward_flops,
    make_batches,
    training_flops,
)
from benchmark.peers.tables import IdBatch, TouchedRows, build_tables
from benchmark.peers.torchrec import has_torchrec, single_process_group
from benchmark.side_by_side import check_error, id_batches, table_major, torchrec_columns
from cuda_ext import ops
from cuda_ext.error_bounds import Bounded
from dlrm.distributed.placement import Placement, TablePlacement
from dlrm.model.network import Dlrm
from recsys.train.processes import join_processes
from tests.harness import refusal
from tests.tools import needs

SIZES_OF_TABLES = [50, 7, 1]
TABLES = [20, 3, 50]
TINY = {"tables": 3, "rows": 50, "dims": (16,), "batch_sizes": (32,), "threads": 1}
TINY |= {"matmul_size": 16, "copy_mib": 1, "allocator": "default"}

pytestmark = needs("compiled cuda_ext kernels")


def larger(right):
    """Returns the function with a result that is a thousandth too large."""
    return lambda *arguments, **settings: right(*arguments, **settings) * 1.001


def faster(right):
    """Returns the update of rows with a learning rate that is a hundredth too large."""

    def wrong(*arguments, **settings):
        *lookups, step = arguments
        right(*lookups, step._replace(lr=step.lr * 1.01), **settings)

    return wrong


@pytest.mark.parametrize(
    ("case", "settings", "op", "wrong", "message"),
    [
        (
            InteractionKernels,
            {"compile": False},
            "dot_interaction",
            larger,
            "interaction, ours, output",
        ),
        (EmbeddingKernels, {}, "update_rows", faster, "ours"),
        (SparseStepKernels, {}, "update_rows", faster, "ours"),
        (SparseStepKernels, {}, "gather_dot_interaction", larger, r"ours(, unfused)?, output"),
    ],
)
def test_a_wrong_kernel_is_found(monkeypatch, tmp_path, case, settings, op, wrong, message):
    monkeypatch.setattr(ops, op, wrong(getattr(ops, op)))
    with pytest.raises(ArithmeticError, match=message):
        next(case(**TINY, **settings).groups(tmp_path))


@pytest.mark.release
def test_a_compiled_reference_is_a_candidate(tmp_path):
    for group in InteractionKernels(**TINY).groups(tmp_path):
        (ms,) = group.candidates["torch.compile"](1).values()
        assert ms > 0
    assert interaction_kernels.PEER in group.candidates or not has_torchrec()


def test_an_error_is_judged_by_its_bound():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    bound = Bounded(truth, torch.full((2,), 0.01).double())
    check_error("case", (truth + 0.0099).float(), bound)
    with refusal("case", "2.1", kind=ArithmeticError):
        check_error("case", (truth + 0.021).float(), bound)
    with pytest.raises(ArithmeticError):
        check_error("case", torch.tensor([1.0, float("nan")]), bound)


def test_layouts_of_the_peers():
    ids = torch.tensor([[1, 5, 7], [2, 6, 8]])
    values, offsets = table_major(ids)
    assert values.tolist() == [1, 2, 5, 6, 7, 8]
    assert offsets.tolist() == [0, 1, 2, 3, 4, 5, 6]
    lower = [(j, i) for j in range(5) for i in range(j)]
    upper = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    assert torchrec_columns(0, 5).tolist() == [lower.index((j, i)) for i, j in upper]


def test_touched_rows_number_the_lookups():
    tables = build_tables(SIZES_OF_TABLES, 4, "sgd")["ours"]
    batches = [IdBatch.from_ids(ids) for ids in id_batches(SIZES_OF_TABLES, 9, "uniform", count=2)]
    touched = TouchedRows(batches)
    rows = touched.of(tables)
    assert len(rows) < sum(SIZES_OF_TABLES)
    for batch in batches:
        looked_up = rows[touched.numbers(batch)]
        for feature, table in enumerate(tables.tables()):
            torch.testing.assert_close(looked_up[:, feature], table[batch.ids[:, feature]])


def test_implementations_train_alike_and_a_different_one_is_found():
    config = SIZES["small"]
    with single_process_group() if has_torchrec() else contextlib.nullcontext():
        candidates = build_candidates(config, TABLES)
        batches = make_batches(config, TABLES, 64, "zipf")
        check_training(candidates, batches)
        data = candidates[PYTORCH].prepare(batches[0])
        ours = candidates["ours"].logits(data)
        torch.testing.assert_close(candidates[PYTORCH].logits(data), ours, rtol=1e-4, atol=1e-4)
        candidates[PYTORCH].train(data)
        with refusal("ours", PYTORCH, kind=ArithmeticError):
            check_training(candidates, batches)


def test_operations_of_a_sample():
    # Counted by hand for 26 tables: MLPs 4.73 MFLOP and 0.09 for the dot products of 27 vectors.
    bottom = 13 * 512 + 512 * 256 + 256 * 128
    top = 479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert forward_flops(SIZES["big"], 26) == 2 * (bottom + top) + 2 * 128 * 27 * 26 / 2
    assert training_flops(SIZES["big"], 26) == 3 * forward_flops(SIZES["big"], 26) - 2 * 13 * 512


def test_another_start_on_ranks_is_found():
    config = SIZES["small"]
    placement = Placement(1, tuple(TablePlacement(n, "whole", 0) for n in TABLES))
    batches = make_batches(config, TABLES, 64, "zipf")
    start = Dlrm(config, TABLES)
    with join_processes("cpu", 1, needs_group=True) as processes:
        sides = {name: our_side(config, start, placement, 0) for name in ("ours", "other")}
        check_sides(sides, batches, processes)
        sides["other"].train(batches[:1])
        with refusal("ours", "other", kind=ArithmeticError):
            check_sides(sides, batches, processes)
