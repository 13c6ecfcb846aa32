# SPDX-License-Identifier: Apache-2.0
"""Baselines beside a tested DLRM: their fits, their intervals, and what a run logs of them."""

import re
import sys

import numpy as np
import pytest
import scipy
import torch
from scipy import sparse

from dlrm.train.baselines.paired import leads_over
from dlrm.train.baselines.trees import Trees
from dlrm.train.metrics import roc_auc
from recsys.data.click_columns import ClickColumns
from recsys.data.list_columns import ListColumn
from recsys.models.logistic.one_hot import OneHot
from recsys.models.logistic.regression import LogisticRegression, log_losses, minimize
from recsys.models.logistic.rows import SplitRows, spread
from recsys.train.measure.verdict import Lead, verdict
from tests.dlrm.conftest import CARDINALITIES, make_columns
from tests.recsys.train.shown import Page


def made_rows(count, seed, size=30):
    """Rows whose log odds are a sum over an id, a list and steps of a number."""
    draws = np.random.default_rng(seed)
    effects = np.random.default_rng(0).normal(size=(2, size))
    ids, number = draws.integers(0, size, count, np.int32), draws.normal(size=count)
    lengths = draws.integers(0, 4, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    listed = draws.integers(0, size, offsets[-1], np.int32)
    of_lists = np.add.reduceat(np.append(effects[1][listed], 0), offsets[:-1]) * (lengths > 0)
    logits = effects[0][ids] + of_lists + 2 * (number > 1) - 1
    label = draws.random(count) < 1 / (1 + np.exp(-logits))
    columns = ClickColumns(
        label, number[:, None].astype(np.float32), (ids,), (ListColumn(listed, offsets),)
    )
    return SplitRows([columns]), logits


def test_the_weights_are_those_of_another_optimizer():
    draws = np.random.default_rng(0)
    dense = draws.integers(0, 2, (500, 20)) * draws.random((500, 20))
    labels = draws.random(500) < 0.3
    found = minimize(sparse.csr_array(dense), labels, 2.0, np.zeros(21))

    def loss(weights):
        logits = dense @ weights[:-1] + weights[-1]
        return log_losses(logits, labels).sum() + weights[:-1] @ weights[:-1]

    least = scipy.optimize.minimize(loss, np.zeros(21), method="BFGS", options={"gtol": 1e-6})
    assert loss(found) - least.fun < 1e-6 * len(labels)
    np.testing.assert_allclose(found, least.x, atol=0.01)


def test_a_logistic_regression_finds_the_odds_of_ids_lists_and_bins():
    rows, held_out = (made_rows(20_000, seed)[0] for seed in (1, 2))
    tested, truth = made_rows(20_000, 3)
    model = LogisticRegression.fit(rows, held_out, (30, 30), refit=False)
    logits = model.logits(tested.blocks[0])
    gap = (log_losses(logits, tested.labels) - log_losses(truth, tested.labels)).mean()
    assert 0 < gap < 0.004
    again = LogisticRegression.fit(rows, held_out, (30, 30), refit=False)
    assert np.array_equal(again.logits(tested.blocks[0]), logits)
    refitted = LogisticRegression.fit(rows, held_out, (30, 30), refit=True)
    losses = log_losses(refitted.logits(tested.blocks[0]), tested.labels)
    assert losses.mean() < log_losses(logits, tested.labels).mean()


def test_ids_never_seen_and_frequent_numbers_have_columns():
    rows, _ = made_rows(300, 1)
    block = rows.blocks[0]
    numbers = np.where(np.arange(300) < 200, 0, block.numerical[:, 0])[:, None]
    fitted = OneHot.fit(SplitRows([ClickColumns(block.label, numbers, block.categorical)]), (40,))
    unseen = ClickColumns(
        np.zeros(3, bool),
        np.array([[0], [1e-3], [-1e-3]], np.float32),
        (np.array([35, 36, 0], np.int32),),
    )
    columns = fitted.matrix([unseen]).toarray()
    assert (columns.sum(1) == 2).all()
    bins = [set(np.flatnonzero(row[: len(fitted.edges[0]) + 1])) for row in columns]
    assert not bins[0] & (bins[1] | bins[2])  # zero, of most rows, is alone in its bin
    assert columns[0, -1] == columns[1, -1] == 1
    assert columns[2, -1] == 0


def test_spread_rows_are_few_and_reach_the_end():
    assert [*map(len, spread(0, 300_000, 300_000))] == [131_072, 131_072, 37_856]
    ranges = spread(1000, 10_000_000, 500_000)
    assert sum(map(len, ranges)) <= 500_000
    starts = np.array([rows.start for rows in ranges])
    assert np.ptp(np.diff(starts)) <= 1
    assert starts[0] == 1000
    assert ranges[-1].stop > 9_600_000
    assert ranges[-1].stop <= 10_000_000


def test_intervals_hold_the_truth_as_often_as_they_say():
    """The truth is that of many rows of the same kind."""

    def draw(count, draws):
        labels = draws.random(count) < 0.3
        shared = draws.normal(size=count) + labels
        first, second = (shared + draws.normal(size=count) * scale for scale in (0.5, 1.0))
        return first - 1, second - 1, labels

    def differences(first, second, labels):
        auc, loss = leads_over("other", second, first, labels)
        return np.array([auc.value, loss.value])

    draws = np.random.default_rng(0)
    first, second, labels = draw(1_000_000, draws)
    truth, held = differences(first, second, labels), np.zeros(2)
    one, other = (roc_auc(*map(torch.from_numpy, (s, labels))) for s in (first, second))
    assert truth[0] == pytest.approx(one - other, abs=1e-9)
    for _ in range(400):
        first, second, labels = draw(400, draws)
        leads = leads_over("other", second, first, labels)
        held += [lead.low < value < lead.high for lead, value in zip(leads, truth, strict=True)]
    low, high = scipy.stats.binom.ppf((0.0005, 0.9995), 400, 0.95)
    assert (low <= held).all()
    assert (held <= high).all()


LOGISTIC_ALONE = "--baselines=logistic_regression"
ALL = f"{LOGISTIC_ALONE},lightgbm"


def logged(records):
    """Merges the final records of a log."""
    return {k: v for record in records if record["step"] == [] for k, v in record["data"].items()}


LEVEL, MORE, LESS = (-0.01, 0.01), (0.01, 0.02), (-0.02, -0.01)


@pytest.mark.parametrize(
    ("auc", "loss", "expected"),
    [
        (MORE, LESS, "ahead auc log_loss"),
        (MORE, LEVEL, "ahead auc no difference log_loss"),
        (LEVEL, LESS, "ahead log_loss no difference auc"),
        (MORE, MORE, "behind log_loss ahead auc"),
        (LESS, LESS, "behind auc ahead log_loss"),
        (LEVEL, MORE, "behind log_loss"),
        (LEVEL, LEVEL, "no difference auc log_loss"),
    ],
)
def test_a_verdict_looks_at_order_and_loss(auc, loss, expected):
    leads = [Lead("auc", "trees", 0, *auc), Lead("log_loss", "trees", 0, *loss, True)]
    assert re.findall("ahead|behind|no|difference|auc|log_loss", verdict(leads)) == expected.split()


def test_trees_are_repeatable_and_better_than_the_rate():
    rows, held_out, tested = (made_rows(4000, seed)[0] for seed in (1, 2, 3))
    first, second = (
        Trees.fit(rows, held_out, threads, shares_id_zero=False, refit=False).logits(
            tested.blocks[0]
        )
        for threads in (1, 2)
    )
    assert np.array_equal(first, second)
    rate = np.full(4000, np.log(rows.labels.mean() / (1 - rows.labels.mean())))
    assert log_losses(first, tested.labels).mean() < log_losses(rate, tested.labels).mean()


@pytest.mark.parametrize("dataset_type", ["split", "parquet", "binary", "npy"])
def test_a_run_and_its_test_log_the_company(program, dataset, tmp_path, dataset_type):
    flags = (f"--dataset_type={dataset_type}", "--epochs=2", LOGISTIC_ALONE)
    report = tmp_path / "run.html"
    trained = logged(program.train(dataset, tmp_path / "run", *flags, f"--report={report}"))
    tested = program.test(dataset, tmp_path / "run", f"--dataset_type={dataset_type}", ALL)
    train, validation, test = (
        SplitRows([make_columns(rows, seed)]) for seed, rows in enumerate((6000, 1250, 1250))
    )
    model = LogisticRegression.fit(train, validation, CARDINALITIES, refit=False)
    logits, labels = model.logits(test.blocks[0]), test.labels
    expected = {
        "constant_auc": 0.5,
        "constant_calibration": train.labels.mean() / labels.mean(),
        "logistic_regression_auc": roc_auc(*map(torch.from_numpy, (logits, labels))),
        "logistic_regression_log_loss": log_losses(logits, labels).mean(),
    }
    for values in (trained, tested):
        assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-3)
        lead = tested["auc"] - values["logistic_regression_auc"]
        assert values["lead_logistic_regression_auc"] == pytest.approx(lead, abs=1e-6)
        assert values["lead_logistic_regression_auc_low"] < lead
        assert values["verdict"] in program.stdout + report.read_text()
    grid, compared = Page(report).grid("test"), "logistic_regression"
    for who, ends in ((compared, ("",)), (f"lead_{compared}", ("", "_low", "_high"))):
        logged_ends = [trained[f"{who}_auc{end}"] for end in ends]
        assert grid["auc", who, "all rows"] == pytest.approx(logged_ends, abs=5.1e-5)
    assert grid["auc", "model", "all rows"] == pytest.approx([tested["auc"]], abs=5.1e-5)
    assert values["verdict"] == tested["verdict"]
    assert trained["compared_step"] <= 94
    assert "lightgbm_auc" not in trained


def test_where_validation_is_tested_training_rows_choose(program, dataset):
    values = logged(program(f"--dataset={dataset}", "--eval_split=validation", LOGISTIC_ALONE))
    rows = SplitRows([make_columns(6000, 0)])
    cut = [SplitRows([rows.blocks[0][part]]) for part in (slice(5400), slice(5400, 6000))]
    model = LogisticRegression.fit(*cut, CARDINALITIES, refit=True)
    tested = make_columns(1250, 1)
    loss = log_losses(model.logits(tested), tested.label).mean()
    assert values["logistic_regression_log_loss"] == pytest.approx(loss, rel=1e-3)


def test_no_baselines_and_no_company_of_generated_rows(program, dataset):
    alone = logged(program(f"--dataset={dataset}", "--baselines="))
    generated = logged(
        program(ALL, "--dataset_type=synthetic_gpu", "--synthetic_dataset_num_entries=512",
                "--synthetic_dataset_table_sizes=10,10", "--num_numerical_features=3")
    )  # fmt: skip
    assert "verdict" not in alone
    assert "verdict" not in generated
    assert "baselines" in program.refused(f"--dataset={dataset}", "--baselines=forest")


def test_trees_that_cannot_be_imported_are_left_out(program, dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    values = logged(program(f"--dataset={dataset}", ALL))
    assert "lightgbm_auc" not in values
    assert "logistic_regression_auc" in values
    assert "lightgbm" in program.stdout


def test_a_test_needs_no_training_rows(program, dataset, tmp_path):
    program.train(dataset, tmp_path / "run", "--max_steps=5", ALL)
    moved = tmp_path / "moved"
    moved.mkdir()
    for each in dataset.iterdir():
        if each.name != "train":
            (moved / each.name).symlink_to(each)
    values = program.test(moved, tmp_path / "run", ALL)
    assert values["auc"] > 0
    assert "verdict" not in values
