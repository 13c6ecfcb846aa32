# SPDX-License-Identifier: Apache-2.0
"""Counts of pairs of ids: their definition, the rows they are of, and runs with them."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from dlrm.config import model
from dlrm.model.weights import OpenedCheckpoint
from dlrm.nn.pair_counts import PairCounts
from dlrm.scripts import main
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryWriter
from tests import harness
from tests.checkpoints import assert_same
from tests.dlrm.conftest import CARDINALITIES, ROWS, SMALL_MODEL, final, make_columns

SIZES = (4, 9, 2)
FLAGS = ("--pair_counts", "--interaction_op=cat", "--optimizer=adam", "--lr=0.01")


def draw_ids(rows, seed, sizes=SIZES):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, n, (rows,), generator=generator) for n in sizes], 1)


def counted(ids, sizes=SIZES):
    module = PairCounts(sizes)
    for part in ids.split(7):
        module.count(part)
    module.finish()
    return module


def numbers_of(ids, counted_ids, pair, *, own, cells=None):
    """The definition, before it is standardised: log(1 + count) of each row."""
    a, b = pair

    def key(row):
        return (row[a], row[b]) if cells is None else (row[a] * SIZES[b] + row[b]) % cells

    seen = Counter(map(key, counted_ids.tolist()))
    return np.array([math.log1p(max(seen[key(row)] - own, 0)) for row in ids.tolist()])


def no_numbers(rows):
    return np.empty((rows, 0), np.float16)


def write_split(folder, split, spec, columns):
    with SplitBinaryWriter(folder / split, spec, len(columns)) as writer:
        writer.write(0, columns)


@pytest.mark.parametrize("most_cells", [None, 7])
def test_numbers_are_those_of_the_definition(monkeypatch, most_cells):
    """A pair with more combinations than counters shares them by hash."""
    if most_cells is not None:
        monkeypatch.setattr(model, "MOST_CELLS", most_cells)
    rows, others = draw_ids(60, 1), draw_ids(40, 2)
    module = counted(rows)
    pairs = list(itertools.combinations(range(len(SIZES)), 2))
    for ids, own in ((rows, 1), (others, 0)):
        found = module.train(own == 1)(ids).numpy()
        assert found.shape == (len(ids), len(pairs))
        for column, pair in zip(found.T, pairs, strict=True):
            cells = most_cells if most_cells and SIZES[pair[0]] * SIZES[pair[1]] > 7 else None
            of_rows = numbers_of(rows, rows, pair, own=1, cells=cells)
            expected = numbers_of(ids, rows, pair, own=own, cells=cells)
            expected = (expected - of_rows.mean()) / max(of_rows.std(), 0.1)
            np.testing.assert_allclose(column, expected, rtol=1e-4, atol=1e-5)


def test_a_row_in_training_is_as_one_that_was_not_seen():
    """Otherwise a pair that occurs once would tell the training rows from all others."""
    once = torch.stack([torch.arange(9), torch.arange(9)], 1)
    module = counted(once, (9, 9))
    new = torch.tensor([[0, 1], [5, 3]])
    assert torch.equal(module.train()(once).unique(), module.eval()(new).unique())
    assert (module.eval()(once) > module(new).max()).all()


def test_a_pair_that_never_varies_says_nothing():
    module = counted(torch.zeros(50, 2, dtype=torch.int64), (3, 3))
    assert torch.equal(module.train()(torch.zeros(5, 2, dtype=torch.int64)), torch.zeros(5, 1))


def counts_of(folder):
    return OpenedCheckpoint.open(folder).load().pair_counts


def expected_counts(columns):
    return counted(torch.from_numpy(np.stack(columns.categorical, 1).astype("<i8")), CARDINALITIES)


def test_a_run_keeps_the_counts_of_its_training_rows(program, dataset, tmp_path):
    """A test and a resumed run take them from the checkpoint."""
    flags = (*FLAGS, "--test_freq=20", "--seeds=2")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    records = program.train(dataset, whole, *flags)
    for stop in (["--max_steps=13"], []):
        program.train(dataset, parts, *flags, *stop, "--resume")
    assert_same(parts, whole)
    expected = expected_counts(make_columns(ROWS["train"], 0)).state_dict()
    for name, value in counts_of(whole).state_dict().items():
        torch.testing.assert_close(value, expected[name])
    tested = program.test(dataset, whole)
    assert tested["auc"] == pytest.approx(final(records)["best_auc"], abs=1e-6)


def test_training_goes_on_with_the_counts_of_its_own_rows(program, dataset, tmp_path):
    program.train(dataset, tmp_path / "first", *FLAGS, "--max_steps=5")
    begin = f"--load_checkpoint_path={tmp_path / 'first'}"
    part = ("--dataset_subset=0.5", "--max_steps=2")
    program.train(dataset, tmp_path / "next", begin, *part)
    rows = int(counts_of(tmp_path / "next").counts[: 5 * 200].sum())
    assert rows == ROWS["train"] // 2
    assert int(counts_of(tmp_path / "first").counts[: 5 * 200].sum()) == ROWS["train"]


def test_pairs_that_were_seen_are_learnt(program, tmp_path):
    """Half of the rows repeat pairs and are clicks; vectors of ids cannot tell them."""
    generator = np.random.default_rng(3)
    known = generator.integers(0, 300, (600, 2))
    spec = FeatureSpec.criteo((300, 300), 0)
    spec.save(tmp_path)
    for split, rows in (("train", 8000), ("validation", 2000), ("test", 2000)):
        label = generator.random(rows) < 0.5
        ids = np.where(
            label[:, None],
            known[generator.integers(0, len(known), rows)],
            generator.integers(0, 300, (rows, 2)),
        )
        columns = [
            column.astype(feature.dtype)
            for column, feature in zip(ids.T, spec.categorical, strict=True)
        ]
        write_split(tmp_path, split, spec, ClickColumns(label, no_numbers(rows), tuple(columns)))
    auc = {
        counts: final(program.train(tmp_path, tmp_path / str(counts), *FLAGS, *more))["best_auc"]
        for counts, more in ((True, ()), (False, ("--nopair_counts",)))
    }
    assert auc[True] > 0.98 > auc[False] + 0.05


def test_counts_are_refused_where_there_are_no_pairs(program, dataset, tmp_path):
    spec = FeatureSpec.criteo((5,), 0)
    spec.save(tmp_path)
    for split in ROWS:
        ids = np.zeros(64, spec.categorical[0].dtype)
        write_split(tmp_path, split, spec, ClickColumns(ids == 0, no_numbers(64), (ids,)))
    assert "--pair_counts" in program.refused(f"--dataset={tmp_path}", "--pair_counts")
    flags = ("--pair_counts", "--checkpoint_format=nvidia")
    folder = f"--save_checkpoint_path={tmp_path / 'run'}"
    assert "--pair_counts" in program.refused(f"--dataset={dataset}", folder, *flags)


def test_several_processes_are_refused(dataset, tmp_path):
    flags = (f"--dataset={dataset}", f"--log_path={tmp_path / 'log'}", *SMALL_MODEL)
    assert "--pair_counts" in harness.call_on_ranks(2, main, *flags, "--pair_counts", status=2)
