# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from dlrm.train.metrics import click_metrics, group_auc, roc_auc


def pairwise_auc(scores, labels):
    """The definition: share of (positive, negative) pairs in the right order, ties half."""
    wins = 0.0
    pairs = 0
    for p, is_positive in zip(scores, labels, strict=True):
        for n, is_other in zip(scores, labels, strict=True):
            if is_positive and not is_other:
                pairs += 1
                wins += 1.0 if p > n else 0.5 if p == n else 0.0
    return wins / pairs if pairs else math.nan


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), max_size=40))
def test_equals_the_definition(rows):
    scores = torch.tensor([float(s) for s, _ in rows])
    labels = torch.tensor([bool(y) for _, y in rows], dtype=torch.bool)
    expected = pairwise_auc([s for s, _ in rows], [y for _, y in rows])
    assert roc_auc(scores, labels) == pytest.approx(expected, abs=1e-15, nan_ok=True)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(0, 4)), max_size=60))
def test_auc_within_groups_is_the_mean_of_theirs_by_rows(rows):
    scores = torch.tensor([float(s) for s, _, _ in rows])
    labels = torch.tensor([y for _, y, _ in rows], dtype=torch.bool)
    groups = torch.tensor([g for _, _, g in rows], dtype=torch.int64)
    of_groups = [
        (pairwise_auc([s for s, _, g in rows if g == group], [y for _, y, g in rows if g == group]),
         sum(g == group for _, _, g in rows))
        for group in sorted({g for _, _, g in rows})
    ]  # fmt: skip
    counted = [(auc, n) for auc, n in of_groups if not math.isnan(auc)]
    made = group_auc(scores, labels, groups)
    assert (made.num_groups, made.num_rows) == (len(counted), sum(n for _, n in counted))
    total = sum(n for _, n in counted)
    expected = sum(auc * n for auc, n in counted) / total if total else math.nan
    assert made.auc == pytest.approx(expected, abs=1e-12, nan_ok=True)
    without = group_auc(scores, labels, groups.where(groups != 0, -1))
    others = groups != 0
    alone = group_auc(scores[others], labels[others], groups[others])
    assert without.auc == pytest.approx(alone.auc, abs=1e-12, nan_ok=True)
    assert (without.num_groups, without.num_rows) == (alone.num_groups, alone.num_rows)
    assert (without.num_left_out, alone.num_left_out) == (int((~others).sum()), 0)


def test_equals_sklearn_on_many_rows():
    generator = np.random.default_rng(1)
    labels = generator.random(50_000) < 0.2
    scores = (generator.normal(size=50_000) + labels).astype(np.float32).round(2)
    ours = click_metrics(torch.from_numpy(scores), torch.from_numpy(labels))
    assert ours.auc == pytest.approx(sk.roc_auc_score(labels, scores), abs=1e-12)
    probabilities = 1 / (1 + np.exp(-scores.astype(np.float64)))
    assert ours.log_loss == pytest.approx(sk.log_loss(labels, probabilities), rel=1e-9)
    assert ours.accuracy == pytest.approx(sk.accuracy_score(labels, scores > 0), abs=1e-12)
    assert ours.calibration == pytest.approx(probabilities.mean() / labels.mean(), rel=1e-9)


def test_does_not_depend_on_the_order_of_rows():
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(5000, generator=generator).mul(10).round()
    labels = torch.rand(5000, generator=generator) < 0.5
    order = torch.randperm(5000, generator=generator)
    assert roc_auc(scores[order], labels[order]) == roc_auc(scores, labels)


def test_counts_beyond_float32():
    # 2**24 + 1 negatives: a float32 count would lose the last one and shift the area.
    negatives = 2**24 + 1
    scores = torch.zeros(negatives + 1)
    scores[0] = 1.0
    labels = torch.zeros(negatives + 1, dtype=torch.bool)
    labels[-1] = True
    expected = (negatives - 1) / 2 / negatives
    assert roc_auc(scores, labels) == expected


def test_large_logits_do_not_saturate():
    scores = torch.tensor([90.0, 100.0, 110.0])
    assert roc_auc(scores, torch.tensor([False, True, True])) == 1.0


@pytest.mark.parametrize("labels", [[True, True], [False, False]])
def test_one_class_has_no_area(labels):
    assert math.isnan(roc_auc(torch.tensor([0.0, 1.0]), torch.tensor(labels)))


def test_nan_scores_have_no_area():
    assert math.isnan(roc_auc(torch.tensor([0.0, math.nan]), torch.tensor([True, False])))


def test_base_rate_predictions_have_normalised_entropy_one():
    labels = torch.tensor([True, False, False, False])
    logits = torch.full((4,), math.log(0.25 / 0.75), dtype=torch.float64)
    found = click_metrics(logits, labels)
    assert found.normalised_entropy == pytest.approx(1.0)
    assert found.calibration == pytest.approx(1.0)
    assert found.auc == 0.5
