# SPDX-License-Identifier: Apache-2.0
"""The comparison of two files of predictions."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet

from benchmark import compare_predictions
from benchmark.compare_predictions import Predictions
from dlrm.train.metrics import roc_auc
from tests.harness import assert_tells

ROWS = 2000


def draw(strength, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.random(ROWS) < 0.3
    noise = np.random.default_rng(seed + 1).normal(size=ROWS)
    return labels, np.round(strength * labels + noise, 1)


def write(path, labels, logits):
    columns = {"row": np.arange(len(labels)), "label": labels.astype(np.uint8), "logit": logits}
    table = pa.table(columns)
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)
    return str(path)


def test_metrics_are_those_of_repeated_rows():
    labels, logits = draw(1.0)
    counts = np.random.default_rng(5).integers(0, 3, ROWS)
    repeated = np.repeat(np.arange(ROWS), counts)
    ours = Predictions(labels, logits)
    exact = torch.from_numpy(logits[repeated]), torch.from_numpy(labels[repeated])
    assert ours.auc(counts) == roc_auc(*exact)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(exact[0], exact[1].double())
    assert ours.log_loss(counts) == pytest.approx(float(loss))


def test_a_better_model_is_told_from_an_equal_one(tmp_path, capsys):
    labels, weak = draw(0.5)
    _, strong = draw(1.0)
    first = write(tmp_path / "a.csv", labels, weak)
    second = write(tmp_path / "b.parquet", labels, strong)
    assert compare_predictions.main(["", first, second, "--samples=200"]) == 0
    better = capsys.readouterr().out.splitlines()[1]
    low = float(better.rpartition("[")[2].partition(",")[0])
    assert low > 0.02
    assert compare_predictions.main(["", first, first, "--samples=50"]) == 0
    assert "+0.000000  [+0.000000, +0.000000]" in capsys.readouterr().out


def test_the_interval_holds_the_difference_of_other_rows():
    """Of 40 draws of rows, intervals of 95% miss the true difference a few times."""
    exact = []
    for seed in range(40):
        labels, first = draw(1.0, seed)
        second = first + np.random.default_rng(seed + 1000).normal(size=ROWS)
        pair = Predictions(labels, first), Predictions(labels, second)
        auc, _ = compare_predictions.compare(pair[0], pair[1:], ROWS, 100, seed)
        exact.append((auc.second - auc.first, auc.low, auc.high))
    mean = np.mean([difference for difference, *_ in exact])
    missed = sum(not low <= mean <= high for _, low, high in exact)
    assert missed <= 8
    assert min(high - low for _, low, high in exact) > 0


def test_other_rows_and_files_without_predictions_are_refused(tmp_path, capsys):
    labels, logits = draw(1.0)
    first = write(tmp_path / "a.csv", labels, logits)
    other, without = tmp_path / "b.csv", tmp_path / "c.csv"
    without.write_text("a,b\n1,2\n")
    for second, *facts in (
        (write(other, ~labels, logits), first),
        (write(other, labels[1:], logits[1:]), first),
        (without, "row, label, logit"),
        (tmp_path / "absent.csv", "row, label, logit"),
    ):
        assert compare_predictions.main(["", first, str(second)]) == 2
        assert_tells(capsys.readouterr().err, second, *facts)
