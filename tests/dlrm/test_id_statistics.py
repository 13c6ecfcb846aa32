# SPDX-License-Identifier: Apache-2.0
"""Statistics of ids: their definition, the rows they are of, and runs with them."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from dlrm.model.weights import DlrmCheckpoint
from dlrm.nn.id_statistics import IdStatistics
from dlrm.scripts import main
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryWriter
from tests import harness
from tests.checkpoints import assert_same
from tests.dlrm.conftest import CARDINALITIES, ROWS, SMALL_MODEL, final, make_columns

SIZES = (4, 9, 2)
SLOTS = 4001
FLAGS = ("--id_statistics=4096", "--interaction_op=cat", "--optimizer=adam", "--lr=0.01")


def draw(rows, seed, sizes=SIZES):
    """Returns [rows, F] ids and their labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, n, (rows,), generator=generator) for n in sizes]
    return torch.stack(ids, 1), torch.rand(rows, generator=generator) < 0.3


def fitted(ids, label, sizes=SIZES, slots=SLOTS):
    module = IdStatistics(sizes, slots)
    module.fit(ids, label)
    return module


def combinations(row):
    """Returns the ids of a row and its pairs of ids, each with the numbers of its features."""
    ids = list(enumerate(row))
    return [*((each,) for each in ids), *itertools.combinations(ids, 2)]


def fold(row):
    mixed = 0
    for each in row:
        mixed = (mixed * 40503 + each + 1) % (2**31 - 1)
    return mixed % 4


def expected_numbers(ids, known, label, *, is_training):
    """The definition, before the numbers are standardised: [rows, 2 C]."""
    every, clicked = Counter(), Counter()
    every_of, clicked_of = Counter(), Counter()
    for row, click in zip(known.tolist(), label.tolist(), strict=True):
        for each in combinations(row):
            every[each] += 1
            every_of[each, fold(row)] += 1
            clicked[each] += click
            clicked_of[each, fold(row)] += click
    p = label.float().mean().item()
    found = []
    for row in ids.tolist():
        counts, odds = [], []
        for each in combinations(row):
            n, c, others = every[each], clicked[each], every[each]
            if is_training:
                n, c = n - 1, c - clicked_of[each, fold(row)]
                others -= every_of[each, fold(row)]
            counts.append(math.log1p(max(n, 0)))
            odds.append(math.log((c + 5 * p) / (others - c + 5 * (1 - p))))
        found.append([*counts, *odds])
    return np.array(found)


def no_numbers(rows):
    return np.empty((rows, 0), np.float16)


def write_split(folder, split, spec, columns):
    with SplitBinaryWriter(folder / split, spec, len(columns)) as writer:
        writer.write(0, columns)


def test_numbers_are_those_of_the_definition():
    (rows, label), (others, _) = draw(60, 1), draw(40, 2)
    module = fitted(rows, label)
    of_rows = expected_numbers(rows, rows, label, is_training=True)
    assert of_rows.std(0).min() > 0
    for ids, is_training in ((rows, True), (others, False)):
        expected = expected_numbers(ids, rows, label, is_training=is_training)
        expected = (expected - of_rows.mean(0)) / np.maximum(of_rows.std(0), 0.1)
        found = module.train(is_training)(ids).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_row_in_training_is_as_one_that_was_not_seen():
    """Otherwise a pair that occurs once would tell the training rows from all others."""
    once = torch.stack([torch.arange(9), torch.arange(9)], 1)
    module = fitted(once, torch.arange(9) % 2 == 0, (9, 9))
    pair, of_pair = torch.tensor([[0, 1], [5, 3]]), 2
    in_training, unseen = (
        module._numbers(once, in_training=True),
        module._numbers(pair, in_training=False),
    )
    assert torch.equal(in_training[:, of_pair].unique(), unseen[:, of_pair].unique())
    assert (module._numbers(once, in_training=False)[:, of_pair] > unseen[:, of_pair].max()).all()


def test_no_row_is_told_its_own_label():
    """Nor that of rows with the same ids, from which a model could read it."""
    ids, label = draw(200, 3)
    same = (ids == ids[0]).all(1)
    before, after = fitted(ids, label), fitted(ids, label ^ same)
    after.rate.copy_(before.rate)  # which all rows share
    numbers = [module._numbers(ids, in_training=True) for module in (before, after)]
    assert torch.equal(numbers[0][same], numbers[1][same])
    assert not torch.equal(numbers[0], numbers[1])


def test_a_number_that_never_varies_says_nothing():
    module = fitted(torch.zeros(50, 2, dtype=torch.int64), torch.arange(50) < 9, (3, 3))
    assert torch.equal(module.train()(torch.zeros(5, 2, dtype=torch.int64)), torch.zeros(5, 6))
    assert torch.equal(module.eval()(torch.ones(5, 2, dtype=torch.int64)), torch.zeros(5, 6))


@pytest.mark.parametrize("label", [0, 1])
def test_rows_of_one_class_have_finite_numbers(label):
    ids, _ = draw(1000, 5)
    module = fitted(ids, torch.full((1000,), label))
    for is_training in (True, False):
        assert module.train(is_training)(ids).isfinite().all()


@pytest.mark.parametrize("slots", [2, 60, 3000])
def test_a_full_table_keeps_the_most_frequent_ones(slots):
    """What it keeps is exact, and what it has lost is as if it were never seen."""
    sizes = (40, 50)
    generator = torch.Generator().manual_seed(4)
    ids = torch.stack([(torch.rand(900, generator=generator) ** 3 * n).long() for n in sizes], 1)
    label = torch.rand(900, generator=generator) < 0.4
    module = fitted(ids, label, sizes, slots)
    found = module._numbers(ids, in_training=False)
    exact = torch.from_numpy(expected_numbers(ids, ids, label, is_training=False)).float()
    unseen = torch.logit(label.float().mean()).expand(len(ids), 3)
    is_exact = torch.isclose(found, exact, atol=1e-5)
    assert (is_exact[:, :3] | (found[:, :3] == 0)).all()
    assert (is_exact[:, 3:] | torch.isclose(found[:, 3:], unseen, atol=1e-5)).all()
    kept, lost = exact[:, :3][is_exact[:, :3]], exact[:, :3][~is_exact[:, :3]]
    if slots == 3000:
        assert is_exact.all()
        return
    assert exact[:, :3].max() == kept.max()
    assert kept.mean() > lost.mean()


def statistics_of(folder):
    return DlrmCheckpoint.open(folder).load().id_statistics


def expected_statistics(columns):
    ids = torch.from_numpy(np.stack(columns.categorical, 1).astype("<i8"))
    return fitted(ids, torch.from_numpy(columns.label), CARDINALITIES, 4096)


def test_a_run_keeps_the_statistics_of_its_training_rows(program, dataset, tmp_path):
    """A test and a resumed run take them from the checkpoint."""
    flags = (*FLAGS, "--test_freq=20", "--seeds=2")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    records = program.train(dataset, whole, *flags)
    for stop in (["--max_steps=13"], []):
        program.train(dataset, parts, *flags, *stop, "--resume")
    assert_same(parts, whole)
    expected = expected_statistics(make_columns(ROWS["train"], 0)).state_dict()
    for name, value in statistics_of(whole).state_dict().items():
        torch.testing.assert_close(value, expected[name])
    tested = program.test(dataset, whole)
    assert tested["auc"] == pytest.approx(final(records)["best_auc"], abs=1e-6)


def rows_known(folder):
    """Returns the rows that the ids of the first feature were found in."""
    statistics = statistics_of(folder)
    return int(statistics.rows[(statistics.keys >= 0) & (statistics.keys < CARDINALITIES[0])].sum())


def test_training_goes_on_with_the_statistics_of_its_own_rows(program, dataset, tmp_path):
    program.train(dataset, tmp_path / "first", *FLAGS, "--max_steps=5")
    begin = f"--load_checkpoint_path={tmp_path / 'first'}"
    part = ("--dataset_subset=0.5", "--max_steps=2")
    program.train(dataset, tmp_path / "next", begin, *part)
    assert rows_known(tmp_path / "next") == ROWS["train"] // 2
    assert rows_known(tmp_path / "first") == ROWS["train"]


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
        for counts, more in ((True, ()), (False, ("--id_statistics=0",)))
    }
    assert auc[True] > 0.98 > auc[False] + 0.05


def test_what_cannot_have_statistics_is_refused(program, dataset, tmp_path):
    spec = FeatureSpec.criteo((), 2)
    spec.save(tmp_path)
    for split in ROWS:
        label = np.arange(64) % 2 == 0
        columns = ClickColumns(label, np.ones((64, 2), np.float16), ())
        write_split(tmp_path, split, spec, columns)
    numbers = ("--numerical_embedding=bins", "--interaction_op=cat", "--id_statistics=64")
    assert "--id_statistics" in program.refused(f"--dataset={tmp_path}", *numbers)
    assert "--id_statistics" in program.refused(f"--dataset={dataset}", "--id_statistics=1")


def test_several_processes_are_refused(dataset, tmp_path):
    flags = (f"--dataset={dataset}", f"--log_path={tmp_path / 'log'}", *SMALL_MODEL)
    said = harness.call_on_ranks(2, main, *flags, "--id_statistics=64", status=2)
    assert "--id_statistics" in said
