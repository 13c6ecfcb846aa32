# SPDX-License-Identifier: Apache-2.0
"""Metrics against their definitions; explanations of models whose answers are known."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from dlrm.config import ModelConfig
from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from dlrm.nn.bags import BaggedEmbedding, Bags
from dlrm.train.explain import calibration_curve, explain
from dlrm.train.metrics import click_metrics, group_auc, roc_auc
from recsys.data.feature_spec import CategoricalFeature, FeatureSpec, ListFeature
from recsys.data.list_columns import ListColumn
from recsys.train.optimizers.precision import Precision
from tests.dlrm.networks import batch, build


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


def test_nan_scores_have_no_area():
    assert math.isnan(roc_auc(torch.tensor([0.0, math.nan]), torch.tensor([True, False])))


def test_base_rate_predictions_have_normalised_entropy_one():
    labels = torch.tensor([True, False, False, False])
    logits = torch.full((4,), math.log(0.25 / 0.75), dtype=torch.float64)
    found = click_metrics(logits, labels)
    assert found.normalised_entropy == pytest.approx(1.0)
    assert found.calibration == pytest.approx(1.0)
    assert found.auc == 0.5


def test_a_calibrated_model_lies_on_the_diagonal():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200_000, generator=generator) * 2
    labels = (torch.rand(200_000, generator=generator) < logits.sigmoid()).float()
    curve = calibration_curve(logits, labels)
    assert len(curve) == 10
    assert [p for p, _ in curve] == sorted(p for p, _ in curve)
    for predicted, observed in curve:
        assert observed == pytest.approx(predicted, abs=0.01)
    for predicted, observed in calibration_curve(logits + 2, labels)[2:8]:
        assert predicted > observed + 0.05


def test_a_list_that_decides_is_the_first():
    shape = {"embedding_dim": 2, "bottom_mlp_sizes": (2,), "top_mlp_sizes": (1,)}
    config = ModelConfig(num_numerical_features=1, **shape)
    tables = BaggedEmbedding.of(config, (3, 5))
    model = Dlrm(config, (3, 5), tables)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # The click is decided by the sum of the list's vectors, times that of the bottom MLP.
        model.bottom_mlp.linears[0].bias.fill_(1)
        tables.weight[3:] = torch.arange(-2.0, 3.0).unsqueeze(1)
        model.top_mlp.linears[0].weight[0, 2:] = 3
    generator = np.random.default_rng(0)
    batches = []
    for rows in (300, 40):
        offsets = np.concatenate([[0], generator.integers(0, 5, rows).cumsum()])
        ids = generator.integers(0, 5, offsets[-1])
        single = ListColumn(generator.integers(0, 3, rows), np.arange(rows + 1))
        bags = Bags.from_lists((single, ListColumn(ids, offsets)), rows)
        sums = [ids[a:b].sum() - 2 * (b - a) for a, b in itertools.pairwise(offsets)]
        batches.append(Batch(torch.zeros(rows, 1), bags, torch.tensor(sums) > 0))
    one = CategoricalFeature("shop", 3)
    several = ListFeature("seen", 5, pooling="sum", is_weighted=False)
    spec = FeatureSpec(categorical=(one,), numerical=("price",), lists=(several,))
    rises = explain(model, batches, spec, Precision(device_type="cpu"))["feature_importance"]
    assert next(iter(rises)) == "seen"
    assert rises["seen"][0] > 1
    assert rises["shop"] == rises["price"] == (0, 0, 0)


@pytest.mark.parametrize("rows", [3, 1000])
def test_a_feature_that_decides_is_the_first_and_an_unused_one_the_last(rows):
    sizes = (10, 20, 30)
    shape = {"embedding_dim": 4, "bottom_mlp_sizes": (4,), "top_mlp_sizes": (1,)}
    model = build(sizes=sizes, num_numerical_features=2, embedding_type="multi_table", **shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # The click is decided by the first numerical value alone.
        model.bottom_mlp.linears[0].weight[0, 0] = 1
        model.top_mlp.linears[0].weight[0, 0] = 10
        model.top_mlp.linears[0].bias[0] = -5
    drawn = batch(rows, (10,) * 3, num_numerical=2)
    columns = (drawn.numerical, drawn.ids, (drawn.numerical[:, 0] > 0.5).float())
    half = rows // 2 + 1
    halves = [Batch(*(t[rows] for t in columns)) for rows in (slice(half), slice(half, None))]
    spec = FeatureSpec.criteo(sizes, num_numerical=2)
    rises = explain(model, halves, spec, Precision(device_type="cpu"))["feature_importance"]
    assert set(rises) == {"num_0", "num_1", "cat_0", "cat_1", "cat_2"}
    assert all(rises[name] == (0, 0, 0) for name in set(rises) - {"num_0"})
    mean, least, most = rises["num_0"]
    assert least <= mean <= most
    if rows == 1000:
        assert next(iter(rises)) == "num_0"
        assert mean > 0.3
