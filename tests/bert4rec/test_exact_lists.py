# SPDX-License-Identifier: Apache-2.0
"""Served and recommended lists on a CPU are those of scores in float64, ties by item number."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.model.scoring import pack_items, scorer_for
from bert4rec.serve.export import Bert4RecExport
from bert4rec.train.recommend import open_recommender
from cuda_ext import reference
from recsys.ratings.config import RatingsExportOptions
from recsys.ratings.scorer import history_item_pairs, largest_difference
from recsys.serve.deploy import DeploySettings, deploy
from tests.recsys.serve.checkpoints import bert4rec_checkpoint
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

CPU = torch.device("cpu")
HISTORIES = [np.array(h, np.int64) for h in ([3], [7, 9, 7], range(1, 12), [2, 50, 1])]


def exact(scorer, count, histories=HISTORIES):
    """Returns (items, scores) by sorting all scores in float64."""
    rows, items = history_item_pairs(histories, CPU)
    best, scores = reference.top_rows(
        scorer.vectors, scorer.items, scorer.bias, count, rows, items - 1
    )
    return best + 1, scores


@torch.inference_mode()
@pytest.mark.parametrize("settings", [{}, {"head": "tied"}, {"temperature": 0.1}], ids=str)
@pytest.mark.parametrize("count", [5, 50])
def test_lists_of_packed_items_are_exact(tmp_path, settings, count):
    _, model = bert4rec_checkpoint(tmp_path / "checkpoint", **settings)
    plain = scorer_for(model, HISTORIES, causal=False)
    packed = scorer_for(model, HISTORIES, causal=False, packed=pack_items(model))
    seen = history_item_pairs(HISTORIES, CPU)
    items, scores = packed.top(count, *seen)
    expected, of_expected = exact(plain, count)
    assert torch.equal(items, expected)
    assert torch.equal(scores, of_expected)
    assert largest_difference(plain, items.masked_fill(scores.isneginf(), 0), scores, *seen) < 1e-5
    assert packed.top(70, *seen)[0].shape == plain.top(70, *seen)[0].shape


@torch.inference_mode()
def test_equal_scores_are_served_by_item_number(tmp_path):
    checkpoint, _ = bert4rec_checkpoint(tmp_path / "checkpoint", init_std=0.0)
    export = Bert4RecExport(checkpoint, RatingsExportOptions(top_k=20))
    version = deploy(export, DeploySettings(repository=tmp_path / "models", verify=4))
    served = export.served_class.open(version.folder, CPU)
    (answer,) = served.predict([{"history": np.array([[2, 4, 9]])}])
    assert answer["items"][0].tolist() == [n for n in range(1, 24) if n not in (2, 4, 9)]
    assert (answer["scores"] == 0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_with_numbers_that_are_not_finite_is_scored_plainly(tmp_path, caplog, value):
    _, model = bert4rec_checkpoint(tmp_path / "checkpoint", head="untied")
    with torch.inference_mode():
        model.head.bias[3] = value
        assert pack_items(model) is None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert pack_items(model.double()) is None  # float64 is not what the kernels take


@torch.inference_mode()
def test_a_history_that_overflows_is_scored_plainly(tmp_path):
    _, model = bert4rec_checkpoint(tmp_path / "checkpoint")
    scorer = scorer_for(model, HISTORIES, causal=False, packed=pack_items(model))
    vectors = scorer.vectors.clone()
    vectors[1, 0] = math.nan
    items, scores = dataclasses.replace(scorer, vectors=vectors).top(
        5, *history_item_pairs(HISTORIES, CPU)
    )
    assert scores[1].isnan().all()
    assert torch.equal(items[0], exact(scorer, 5)[0][0])


def test_recommended_lists_are_exact(dataset, trained):
    recommender = open_recommender(
        Bert4RecConfig.from_dict(
            {"mode": "recommend", "dataset_path": str(dataset), "base_device": "cpu"}
            | {"load_checkpoint_path": str(trained)}
        )
    )
    histories = [[3], [5, 8, 3]]
    items, scores = recommender.top(histories, 7)
    arrays = [np.array(history) for history in histories]
    with torch.inference_mode():
        scorer = scorer_for(recommender.model.network, arrays, causal=False)
        expected, of_expected = exact(scorer, 7, arrays)
    assert np.array_equal(items, expected.numpy())
    assert np.array_equal(scores, of_expected.numpy())
