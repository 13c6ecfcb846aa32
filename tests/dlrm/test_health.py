# SPDX-License-Identifier: Apache-2.0
"""What a test says of a model of no use, and of rows that make one."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from dlrm.data.drift import SplitSample
from dlrm.scripts import main
from dlrm.train.health import data_lines, metric_lines
from dlrm.train.metrics import click_metrics
from preproc.clicks import __main__ as clicks_program
from tests.dlrm.conftest import final
from tests.harness import call_on_ranks

SCHEMA = """\
label: {column: click}
columns:
- {name: [site, user], role: categorical, type: string}
- {name: number, role: ignored}
split: %s
"""
RANDOM = "{random: {fractions: [0.7, 0.1, 0.2]}}"
MODEL = ("--preset=criteo_sample", "--base_device=cpu", "--epochs=2")


def rows_of(rng, count, rate):
    """Returns rows whose site tells the click in five of six cases, and whose user nothing."""
    for _ in range(count):
        click = int(rng.random() < rate)
        told = click if rng.random() < 5 / 6 else 1 - click
        yield click, f"s{rng.integers(0, 4) + 4 * told}", f"u{rng.integers(0, 50)}"


def prepared(folder, rows, split, *flags):
    """Prepares a dataset of rows; returns its folder."""
    folder.mkdir()
    (folder / "schema.yaml").write_text(SCHEMA % split)
    lines = (f"{click},{site},{user},{i}\n" for i, (click, site, user) in enumerate(rows))
    (folder / "log.csv").write_text("click,site,user,number\n" + "".join(lines))
    words = (
        *(f"--input={folder / 'log.csv'}", f"--schema={folder / 'schema.yaml'}"),
        *(f"--output={folder / 'data'}", "--progress=none"),
    )
    assert clicks_program.main(["clicks", *words, *flags]) == 0
    return folder / "data"


def train(program, dataset, *more):
    return program(f"--dataset={dataset}", *more, model=MODEL)


def score(program, dataset, run, *more):
    return final(train(program, dataset, "--mode=test", f"--load_checkpoint_path={run}", *more))


@pytest.fixture(scope="module")
def sorted_rows():
    rows = list(rows_of(np.random.default_rng(5), 3000, 0.5))
    return sorted(rows, key=lambda row: row[0])


@pytest.fixture(scope="module")
def in_order(sorted_rows, tmp_path_factory):
    """A dataset whose training rows are sorted by their label."""
    folder = tmp_path_factory.mktemp("sorted") / "log"
    return prepared(folder, sorted_rows, RANDOM, "--shuffle_seed=none")


def test_a_log_sorted_by_its_label_is_trained_on_as_a_shuffled_one(program, tmp_path, sorted_rows):
    auc = {}
    shuffled = [sorted_rows[i] for i in np.random.default_rng(0).permutation(len(sorted_rows))]
    for name, rows in (("sorted", sorted_rows), ("shuffled", shuffled)):
        records = train(program, prepared(tmp_path / name, rows, RANDOM))
        auc[name] = final(records)["best_auc"]
        assert "--shuffle_seed" not in program.stdout
    assert auc["sorted"] == pytest.approx(auc["shuffled"], abs=0.03)
    assert auc["sorted"] > 0.8


def drift_lines(output):
    """Returns the two click rates and their parts, of each line of drift."""
    rate = r"(\d+\.\d)% in part (\d+)"
    return re.findall(f"{rate} and {rate}.*--shuffle_seed", output)


def test_training_and_test_say_once_that_the_click_rate_drifts(program, tmp_path, in_order):
    expected = [("0.0", "1", "100.0", "6")]
    saved = f"--save_checkpoint_path={tmp_path / 'run'}"
    train(program, in_order, saved, "--max_steps=20")
    assert drift_lines(program.stdout) == expected
    train(program, in_order, saved, "--resume")
    assert drift_lines(program.stdout) == expected
    train(program, in_order, saved, "--resume")  # it is at its end, and tests nothing
    assert drift_lines(program.stdout) == []
    score(program, in_order, tmp_path / "run")
    assert drift_lines(program.stdout) == expected


@pytest.mark.multiprocess
@pytest.mark.slow
def test_two_ranks_say_it_once(tmp_path, in_order):
    flags = (*MODEL, f"--dataset={in_order}", f"--log_path={tmp_path / 'log.json'}")
    output = call_on_ranks(2, main, *flags, "--num_threads=1")
    assert drift_lines(output) == [("0.0", "1", "100.0", "6")]


def test_rows_of_parquet_drift_too(program, tmp_path, sorted_rows):
    flags = ("--shuffle_seed=none", "--format=parquet")
    dataset = prepared(tmp_path / "log", sorted_rows, RANDOM, *flags)
    train(program, dataset, "--dataset_type=parquet")
    assert drift_lines(program.stdout) == [("0.0", "1", "100.0", "6")]


def test_a_split_of_other_clicks_is_not_calibrated(program, tmp_path):
    rng = np.random.default_rng(3)
    rows = [*rows_of(rng, 4000, 0.1), *rows_of(rng, 1000, 0.6)]
    dataset = prepared(tmp_path / "log", rows, "{rows: [4000, 500, 500]}")
    train(program, dataset, f"--save_checkpoint_path={tmp_path / 'run'}")
    metrics = score(program, dataset, tmp_path / "run")
    assert metrics["calibration"] < 0.8
    assert f"Calibration {metrics['calibration']:.4f}" in program.stdout
    assert drift_lines(program.stdout) == []


def test_ids_that_only_clickers_have_are_told(program, tmp_path):
    """Users who click come back, others do not; of the later ones none was there before."""
    rows = []
    for number, (click, site, _) in enumerate(rows_of(np.random.default_rng(4), 5000, 0.5)):
        came_before = click and number < 4000
        rows.append((click, site, f"u{number % 40}" if came_before else f"new{number}"))
    dataset = prepared(tmp_path / "log", rows, "{rows: [4000, 500, 500]}")
    records = train(program, dataset)
    clicks = np.mean([click for click, *_ in rows[:4000]])
    assert f"user {1 - clicks:.1%} and 100.0%" in program.stdout
    assert "site " not in program.stdout.split("user ")[1].splitlines()[0]
    assert records[-1]["data"]["best_auc"] > 0


def test_a_sound_run_says_nothing(program, tmp_path):
    dataset = prepared(tmp_path / "log", rows_of(np.random.default_rng(6), 4000, 0.3), RANDOM)
    records = train(program, dataset, f"--save_checkpoint_path={tmp_path / 'run'}", "--baselines=")
    assert program.stdout.rstrip().splitlines()[-1].startswith("Finished after")
    assert final(records)["best_auc"] > 0.75
    score(program, dataset, tmp_path / "run", "--baselines=")
    assert len(program.stdout.splitlines()) == 1


def test_the_model_that_is_kept_is_judged(program, tmp_path):
    """Ids of five rows each are memorised: the last evaluation is of no use, the best one is."""
    rng = np.random.default_rng(7)
    rows = [(c, site, f"u{rng.integers(0, 300)}") for c, site, _ in rows_of(rng, 1500, 0.5)]
    dataset = prepared(tmp_path / "log", rows, RANDOM)
    memorising = ("--epochs=12", "--noreset_embeddings", "--embedding_weight_decay=0", "--lr=0.1")
    how = (*memorising, "--best_by=log_loss", "--baselines=")
    for kept in ([], [f"--save_checkpoint_path={tmp_path / 'run'}"]):
        records = train(program, dataset, *how, *kept)
        entropies = [
            r["data"]["normalised_entropy"] for r in records if "normalised_entropy" in r["data"]
        ]
        assert min(entropies) < 1 < entropies[-1]
        assert ("Normalised entropy" in program.stdout) == (not kept)


def metrics_with(**values):
    rows = torch.arange(4)
    usual = {"auc": 0.7, "normalised_entropy": 0.9, "calibration": 1.0}
    return dataclasses.replace(click_metrics(rows / 4, rows == 0), **{**usual, **values})


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({}, 0),
        ({"normalised_entropy": 1.0}, 0),
        ({"normalised_entropy": 1.01}, 1),
        ({"calibration": 0.8}, 0),
        ({"calibration": 0.79}, 1),
        ({"calibration": 1.25}, 0),
        ({"calibration": 1.26, "normalised_entropy": 2.0}, 2),
        ({"calibration": np.nan, "normalised_entropy": np.nan, "base_rate": 0.0}, 0),
        ({"normalised_entropy": np.nan, "base_rate": 1.0}, 0),
    ],
)
def test_lines_of_metrics(values, count):
    lines = metric_lines(metrics_with(**values), "validation")
    assert len(lines) == count
    assert all("validation" in line for line in lines)


def sample(clicks, rows=1000, zeros=(), ids=1000):
    return SplitSample(
        np.full(len(clicks), rows), np.array(clicks), np.full(len(zeros), ids), np.array(zeros, int)
    )


@pytest.mark.parametrize(
    ("clicks", "rows", "expected"),
    [
        ([100] * 10, 1000, None),
        ([100] * 9 + [300], 1000, (0, 9)),
        ([0, 0, 5, 10], 10, (0, 3)),
        ([0, 0, 1, 1], 4, None),
        ([3, 4, 3, 6], 10, None),  # chance
        ([2500, 2800], 10_000, None),  # sure, but little
        ([1000, 1500, 900], 10_000, (2, 1)),
        ([0] * 10, 1000, None),
        ([], 1000, None),
    ],
)
def test_drift_is_more_than_chance_and_more_than_a_little(clicks, rows, expected):
    assert sample(clicks, rows).drift() == expected


def test_shares_of_id_0():
    train = sample([100], zeros=[0, 100, 400, 500, 0])
    evaluated = sample([100], zeros=[150, 150, 900, 520, 1000])
    assert train.other_shares(evaluated) == [4, 2, 0]
    few = sample([100], zeros=[1, 2, 2, 2, 2], ids=4)
    assert few.other_shares(sample([1], zeros=[0, 0, 0, 0, 0], ids=4)) == []
    no_ids = sample([100], zeros=[0], ids=0)
    assert no_ids.other_shares(sample([100], zeros=[900])) == []
    (line,) = data_lines(train, evaluated, "test", tuple("abcde"))
    assert "e 0.0% and 100.0%, c 40.0% and 90.0%, a 0.0% and 15.0%" in line
    assert data_lines(train, evaluated, "test", ()) == []
