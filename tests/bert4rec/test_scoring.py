# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch

from bert4rec.config import ModelConfig
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import ItemScorer
from bert4rec.train.evaluate import rank_split
from recsys.ratings.data.negatives import draw_negatives
from recsys.ratings.data.opened import random_sequences
from recsys.ratings.data.split import true_items
from recsys.ratings.ranking.evaluate import seen_pairs
from recsys.ratings.ranking.metrics import bootstrap_intervals, ranking_metrics
from recsys.ratings.scorer import rank_among
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE
from recsys.train.recipe import Machine

CPU = torch.device("cpu")
MACHINE = Machine(CPU, Precision(device_type="cpu"), ALONE, print)


def scorer(batch=4, items=11, dim=3, seed=0, levels=None):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    found = ItemScorer(draw(batch, dim), draw(items, dim), draw(items))
    if levels:  # many equal scores
        found = ItemScorer(
            torch.ones(batch, 1), (found.items[:, :1] * levels).round(), found.bias * 0
        )
    return found


def plain_scores(q):
    return q.vectors @ q.items.T + q.bias


SEEN = (torch.tensor([0, 0, 2, 3]), torch.tensor([1, 7, 11, 4]))
TRUTH = torch.tensor([3, 11, 5, 1])


@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("max_scores", [1, 8, 12, 1000])
def test_ranks_equal_sorting_whatever_the_blocks(max_scores, levels):
    q = scorer(levels=levels)
    everything, unseen = q.ranks(TRUTH, *SEEN, max_scores)
    scores = plain_scores(q)
    for row in range(4):
        seen = {int(i) for r, i in zip(*SEEN, strict=True) if r == row}
        true = int(TRUTH[row])
        ahead = {i for i in range(1, 12) if scores[row, i - 1] >= scores[row, true - 1]} - {true}
        assert int(everything[row]) == len(ahead)
        assert int(unseen[row]) == len(ahead - seen)


@pytest.mark.parametrize("max_scores", [1, 1000])
def test_a_score_that_is_nan_never_helps(max_scores):
    q = scorer()
    q.bias[4] = math.nan  # item 5, the truth of history 2
    everything, _ = q.ranks(TRUTH, *SEEN, max_scores)
    assert int(everything[2]) == 10
    before, _ = scorer().ranks(TRUTH, *SEEN, max_scores)
    assert (everything >= before).all()
    assert rank_among(torch.tensor([[math.nan, 1.0, 2.0], [1.0, math.nan, 0.0]])).tolist() == [2, 1]


@pytest.mark.parametrize(
    "blocks", [{"max_scores": 1}, {"max_scores": 12}, {"block_rows": 4}, {}], ids=str
)
@pytest.mark.parametrize("count", [1, 3, 9])
def test_top_equals_sorting_whatever_the_blocks(blocks, count):
    q = scorer()
    items, scores = q.top(count, *SEEN, **blocks)
    expected = plain_scores(q)
    expected[SEEN[0], SEEN[1] - 1] = -math.inf
    best, place = expected.topk(count)
    torch.testing.assert_close(scores, best)
    assert torch.equal(items, place + 1)


def test_scores_of_are_the_same_scores():
    q = scorer()
    items = torch.tensor([[1, 5], [11, 2], [3, 3], [4, 9]])
    torch.testing.assert_close(q.scores_of(items), plain_scores(q).gather(1, items - 1))


def test_a_tie_among_negatives_is_decided_against_the_model():
    assert rank_among(torch.zeros(2, 5)).tolist() == [4, 4]
    assert rank_among(torch.tensor([[1.0, 0.5, 2.0]])).tolist() == [1]


def test_metrics_equal_their_definitions():
    ranks = np.array([0, 3, 9, 10, 250])
    found = ranking_metrics(ranks, (1, 5, 10))
    assert found["hr@1"] == pytest.approx(1 / 5)
    assert found["hr@10"] == pytest.approx(3 / 5)
    assert found["ndcg@5"] == pytest.approx((1 + 1 / math.log2(5)) / 5)
    assert found["mrr"] == pytest.approx(sum(1 / (r + 1) for r in ranks) / 5)


def test_intervals_cover_the_mean_at_their_level():
    generator = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        ranks = np.where(generator.random(400) < 0.3, 0, 99)
        low, high = bootstrap_intervals(ranks, (10,), 200, seed)["hr@10"]
        covered += low <= 0.3 <= high
    assert 86 <= covered <= 100


def test_a_user_of_several_targets_is_drawn_whole():
    ranks, users = np.array([0, 0, 0, 9, 0, 0]), np.array([0, 0, 0, 1, 2, 2])
    found = bootstrap_intervals(ranks, (1, 10), users=users)
    assert found["hr@10"] == (1.0, 1.0)
    low, high = found["hr@1"]
    # Two users of three are drawn at least with a hit each: 5 of 6 targets, or one user alone.
    assert 0 <= low < 5 / 6 < high == 1


@pytest.mark.parametrize("causal", [False, True])
def test_ranking_a_split_equals_one_user_at_a_time(causal):
    sequences = random_sequences(40, 25, 400, 3, 0)
    torch.manual_seed(0)
    model = Bert4Rec(ModelConfig(max_len=8, emb_dim=8, num_layers=2), 25).double()
    model.reset_parameters(0.5)
    negatives = draw_negatives(sequences, 4, by_popularity=False, seed=0)
    for split in ("validation", "test"):
        given = (model, sequences, split, {"four": negatives}, MACHINE)
        together, alone = (rank_split(*given, batch_size=n, causal=causal).ranks for n in (7, 1))
        for name in ("full", "full_with_seen", "four"):
            assert np.array_equal(together[name], alone[name]), name
        assert (together["full"] <= together["full_with_seen"]).all()


def test_seen_pairs_leave_the_true_item_in():
    sequences = random_sequences(30, 6, 300, 3, 0)  # few items: histories repeat the truth
    users = np.arange(sequences.num_users)
    row, item = (t.numpy() for t in seen_pairs(sequences, "test", users, CPU))
    for user in users:
        expected = set(sequences[user][:-1].tolist()) - {int(true_items(sequences, "test")[user])}
        assert sorted(item[row == user].tolist()) == sorted(expected)
