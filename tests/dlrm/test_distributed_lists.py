# SPDX-License-Identifier: Apache-2.0
"""Several ranks train on lists as one process does."""

import contextlib
import itertools

import numpy as np
import pytest
import torch

from dlrm.distributed.exchange import plan_bags
from dlrm.nn.bags import Bags
from dlrm.recipe import DlrmRecipe
from dlrm.scripts import main
from dlrm.scripts.flags import config_from_flags, define_flags
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import ListColumn
from recsys.program import new_flags
from recsys.train.processes import Processes
from recsys.train.run import execute
from tests.checkpoints import assert_same
from tests.dlrm.conftest import SMALL_MODEL
from tests.dlrm.ranks import figures, placement_of
from tests.harness import call, run_ranks
from tests.preproc.clicks.schema_log import prepare, write_log, write_schema

SIZES = (3, 140, 120, 70, 110, 6)
DIM = 4


def drawn_lists(generator, rows, size, kind):
    """Returns lists of 0 to 4 ids, or one id a row."""
    lengths = np.ones(rows, int) if kind == "one" else generator.integers(0, 5, rows)
    ids = generator.integers(0, size, lengths.sum()).astype(np.int8 if size < 128 else np.int16)
    weights = generator.normal(size=len(ids)).astype(np.float32) if kind == "weights" else None
    offsets = np.concatenate([[0], lengths.cumsum()])
    return ListColumn(ids, offsets, weights, kind == "mean")


def pooled(table, column):
    """Returns the vector of each list, by its definition."""
    factors, edges = column.factors(), column.offsets
    return torch.stack([
        (table[torch.from_numpy(column.ids[a:b].astype(np.int64))]
         * torch.from_numpy(factors[a:b, None])).sum(0)
        for a, b in itertools.pairwise(edges)
    ])  # fmt: skip


@pytest.mark.parametrize("rows", [1, 2, 41])
@pytest.mark.parametrize(
    "kinds",
    [
        ("replicate", "rows", 1, "rows", 0, "replicate"),
        ("rows",) * 6,
        (2, 0, 1, 0, 2, 2),
        ("replicate",) * 6,
    ],
)
def test_the_planned_vectors_are_those_of_the_lists(kinds, rows):
    world = 3
    placed = placement_of(world, SIZES, kinds)
    generator = np.random.default_rng(rows)
    of_kind = ("one", "one", "mean", "weights", "sum", "mean")
    columns = {
        i: drawn_lists(generator, rows, n, kind)
        for i, (n, kind) in enumerate(zip(SIZES, of_kind, strict=True))
    }
    tables = [torch.from_numpy(generator.normal(size=(n, DIM))) for n in SIZES]
    nothing = Bags(0, torch.zeros(0), torch.zeros(1), torch.zeros(0))
    plans, sent = [], []
    for rank in range(world):
        own = {i: columns[i] for i in placed.sharded_on(rank)}
        plan = plan_bags(placed, rank, own, nothing, rows)
        shards = [
            tables[i][placed.first_row(i, rank) :: world if kinds[i] == "rows" else 1] for i in own
        ]
        joint = torch.cat([torch.zeros(0, DIM, dtype=torch.float64), *shards])
        bags = plan.rows
        column = ListColumn(bags.ids.numpy(), bags.offsets.numpy(), bags.scale.numpy())
        vectors = [pooled(joint, column)] if len(column) else []
        plans.append(plan)
        sent.append(torch.cat([torch.zeros(0, DIM), *vectors]).split(plan.send_counts))
    expected = torch.stack([pooled(tables[i], columns[i]) for i in range(len(SIZES))], 1)
    sharded = sorted(placed.of_kind("whole") + placed.of_kind("rows"))
    begin = 0
    for rank, plan in enumerate(plans):
        assert plan.receive_counts == tuple(len(of_sender[rank]) for of_sender in sent)
        got = torch.zeros(plan.batch_size * len(SIZES), DIM, dtype=torch.float64)
        got.index_add_(
            0, plan.output_rows, torch.cat([of_sender[rank] for of_sender in sent]).double()
        )
        got = got.view(plan.batch_size, len(SIZES), DIM)
        local = expected[begin : begin + plan.batch_size]
        torch.testing.assert_close(
            got[:, sharded], local[:, sharded].double(), rtol=1e-6, atol=1e-6
        )
        begin += plan.batch_size
    assert begin == rows


FLAGS = (*SMALL_MODEL, "--batch_size=57", "--max_steps=6", "--print_freq=1", "--lr=0.002")
_PIECEWISE = ("--numerical_embedding=piecewise_linear", "--numerical_bins=4")
RUNS = {
    "planned": ("--optimizer=sgd",),
    "mixed": ("--optimizer=adam", "--hash_indices", "--max_table_size=9"),
    "rows": ("--optimizer=rowwise_adagrad", "--seeds=2", "--embedding_init=0.1", *_PIECEWISE),
    "copies": ("--optimizer=adagrad", "--hash_indices", "--max_table_size=9"),
}
"""Placement -> settings."""


def placements(sizes):
    """Returns the placements by name; each kind has features with one id and with lists."""
    mixed = [("replicate", 0, "rows", 1)[i % 4] for i in range(len(sizes))]
    kinds = {"mixed": mixed, "rows": ["rows"] * len(sizes), "copies": ["replicate"] * len(sizes)}
    return {name: placement_of(2, sizes, of_name) for name, of_name in kinds.items()}


def flags_of(name, dataset, root, first):
    """Returns the flags of a run."""
    return (
        *(*FLAGS, *RUNS[name], f"--dataset={dataset}", f"--log_path={root / name / 'log.json'}"),
        f"--save_checkpoint_path={root / name / 'run'}",
        f"--load_checkpoint_path={first / name}",
    )


def run_each(rank, dataset, root, first):
    """Trains in two processes."""
    for name in RUNS:
        values = new_flags()
        define_flags(values)
        placed = () if name == "planned" else (f"--placement={root / name}.json",)
        values(["main", *flags_of(name, dataset, root, first), *placed])
        processes = contextlib.nullcontext(Processes(rank, 2, rank))
        execute("train", DlrmRecipe.open, config_from_flags(values), print, processes)


@pytest.mark.multiprocess
def test_ranks_train_on_lists_as_one_process(tmp_path):
    write_log(tmp_path, 500, seed=3)
    dataset = tmp_path / "dataset"
    prepare(tmp_path / "log.csv", write_schema(tmp_path), dataset, engine="reference")
    whole = FeatureSpec.load(dataset).table_sizes
    first, alone, ranks = (tmp_path / name for name in ("first", "alone", "ranks"))
    for root in (alone, ranks):
        for name in RUNS:
            (root / name).mkdir(parents=True)
    for name in RUNS.keys() - {"planned"}:
        sizes = [min(n, 9) if "--hash_indices" in RUNS[name] else n for n in whole]
        placements(sizes)[name].save(ranks / f"{name}.json")
    for name, settings in RUNS.items():
        start = (*settings, f"--dataset={dataset}", f"--save_checkpoint_path={first / name}")
        start = (*start, "--lr=0", "--max_steps=1", f"--log_path={tmp_path / 'log'}")
        assert call(main, *SMALL_MODEL, *start) == 0
    run_ranks(2, run_each, dataset, ranks, first)
    for name in RUNS:
        assert call(main, *flags_of(name, dataset, alone, first)) == 0
        losses, found = figures(ranks / name / "log.json")
        expected_losses, expected = figures(alone / name / "log.json")
        assert len(losses) == 6
        assert losses == pytest.approx(expected_losses, abs=1e-5), name
        assert found["log_loss"] == pytest.approx(expected["log_loss"], abs=1e-5), name
        assert_same(ranks / name / "run", alone / name / "run", 1e-5, 1e-5)
