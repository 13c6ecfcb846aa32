# SPDX-License-Identifier: Apache-2.0
"""Calibration and feature importance of models whose answers are known."""

import pytest
import torch

from dlrm.config import ModelConfig
from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from dlrm.train.explain import calibration_curve, explain
from recsys.data.feature_spec import FeatureSpec
from recsys.train.optimizers.precision import Precision


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


@pytest.mark.parametrize("rows", [3, 1000])
def test_a_feature_that_decides_is_the_first_and_an_unused_one_the_last(rows):
    torch.manual_seed(0)
    model = Dlrm(
        ModelConfig(num_numerical_features=2, embedding_dim=4, bottom_mlp_sizes=(4,),
                    top_mlp_sizes=(1,), optimized_mlp=False, embedding_type="multi_table",
                    interaction_op="dot"),
        (10, 20, 30),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # The click is decided by the first numerical value alone.
        model.bottom_mlp.linears[0].weight[0, 0] = 1
        model.top_mlp.linears[0].weight[0, 0] = 10
        model.top_mlp.linears[0].bias[0] = -5
    generator = torch.Generator().manual_seed(1)
    numerical = torch.rand(rows, 2, generator=generator)
    ids = torch.randint(0, 10, (rows, 3), generator=generator)
    batch = Batch(numerical, ids, (numerical[:, 0] > 0.5).float())
    halves = [
        Batch(*(t[part] for t in (batch.numerical, batch.ids, batch.label)))
        for part in (slice(0, rows // 2 + 1), slice(rows // 2 + 1, rows))
    ]
    spec = FeatureSpec.criteo((10, 20, 30), num_numerical=2)
    shown = explain(model, halves, spec, Precision(device_type="cpu"))
    rises = shown["feature_importance"]
    assert set(rises) == {"num_0", "num_1", "cat_0", "cat_1", "cat_2"}
    assert all(rises[name] == (0, 0, 0) for name in set(rises) - {"num_0"})
    mean, least, most = rises["num_0"]
    assert least <= mean <= most
    if rows == 1000:
        assert next(iter(rises)) == "num_0"
        assert mean > 0.3
