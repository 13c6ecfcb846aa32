# SPDX-License-Identifier: Apache-2.0
"""Item-to-item baselines: their definitions in plain loops, and how a test reports them."""

import collections
import re

import numpy as np
import pytest

from bert4rec.data.neighbours import neighbour_vectors
from recsys.data.sequences.files import read_sequences
from recsys.data.sequences.histories import Sequences
from recsys.models.baselines import BASELINES
from recsys.models.ease import Ease, EaseSettings
from recsys.ratings.data.negatives import draw_negatives
from recsys.ratings.ranking.evaluate import rank_on_host
from recsys.ratings.ranking.metrics import bootstrap_intervals, paired_difference
from recsys.ratings.ranking.popularity import popularity_ranks
from recsys.ratings.ranking.verdict import leads_over
from recsys.train.measure.verdict import verdict
from tests.harness import assert_tells, refusal

USERS, ITEMS = 80, 150
NAMES = ("markov", "item_knn", "ease", "ease_recent")


def ranks_of(name, sequences, split, negatives):
    return rank_on_host(BASELINES[name](sequences), sequences, split, negatives).ranks


def fit(name, sequences):
    return BASELINES[name](sequences).matrix


@pytest.fixture(scope="module")
def sequences():
    """Random histories, some with an item twice."""
    generator = np.random.default_rng(3)
    offsets = np.concatenate([[0], generator.integers(3, 40, USERS).cumsum()])
    drawn = generator.zipf(1.3, offsets[-1]) % ITEMS + 1
    return Sequences(drawn.astype(np.int32), offsets, ITEMS)


def training_items(sequences):
    return [sequences[user][:-2].tolist() for user in range(sequences.num_users)]


def followers(sequences):
    """Returns [I, I] how often, and how near, an item follows another."""
    counts = np.zeros((ITEMS, ITEMS))
    for items in training_items(sequences):
        for at, item in enumerate(items):
            for distance, later in enumerate(items[at + 1 : at + 11], 1):
                counts[item - 1, later - 1] += 1 / distance
    return counts


def test_markov_weighs_the_roots_of_the_counts_of_those_that_follow(sequences):
    counts = followers(sequences)
    first, following = (np.maximum(counts.sum(axis, keepdims=True), 1e-12) for axis in (1, 0))
    found = fit("markov", sequences).toarray()
    np.testing.assert_allclose(found, counts**0.5 / first**0.25 / following**0.1, rtol=1e-12)


def test_vectors_of_neighbours_factorise_their_positive_information(sequences):
    counts = followers(sequences) + followers(sequences).T
    np.fill_diagonal(counts, 0)
    smoothed = counts.sum(0) ** 0.75
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = counts * smoothed.sum() / np.outer(counts.sum(1), smoothed)
        information = np.log(np.nan_to_num(expected)).clip(0)
    left, strength, _ = np.linalg.svd((information + information.T) / 2)
    vectors = left * np.sqrt(strength)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 1e-6)
    found = neighbour_vectors(sequences, ITEMS + 2).double().numpy()
    assert found.shape == (ITEMS, ITEMS + 2)
    np.testing.assert_allclose(found @ found.T, vectors @ vectors.T, atol=1e-4)
    few = neighbour_vectors(sequences, 8)
    np.testing.assert_allclose(few.norm(dim=1), length[:, 0] > 1e-6, atol=1e-5)


def test_a_training_may_start_from_vectors_of_neighbours(program, dataset):
    flags = (f"--dataset_path={dataset}", "--head=tied", "--max_steps=1", "--lr=1e-9")
    drawn, alike = (
        program(*flags, f"--item_init={name}")[-1]["data"]["test_full_ndcg@10"]
        for name in ("normal", "neighbours")
    )
    assert alike > 1.5 * drawn


def test_item_knn_keeps_the_largest_shrunk_cosines(sequences):
    users = collections.defaultdict(set)
    for user, items in enumerate(training_items(sequences)):
        for item in items:
            users[item].add(user)
    found = fit("item_knn", sequences).toarray().T
    is_cut = False
    for item in range(1, ITEMS + 1):
        cosines = np.array([
            0 if other == item else len(users[item] & users[other])
            / (np.sqrt(len(users[item]) * len(users[other])) + 10)
            for other in range(1, ITEMS + 1)
        ])  # fmt: skip
        kept = found[item - 1] > 0
        assert kept.sum() == min(100, (cosines > 0).sum())
        np.testing.assert_allclose(found[item - 1][kept], cosines[kept], rtol=1e-12)
        assert cosines[~kept].max() <= cosines[kept].min(initial=1)
        is_cut |= (cosines > 0).sum() > 100
    assert is_cut


@pytest.mark.parametrize("ridge", [50, 500])
def test_ease_is_a_ridge_regression_of_each_item_on_the_others(sequences, ridge):
    met = np.zeros((USERS, ITEMS))
    for user, items in enumerate(training_items(sequences)):
        met[user, np.array(items, int) - 1] = 1
    model = Ease.fit(sequences, EaseSettings(ridge=float(ridge)))
    found = model.matrix
    assert model.settings.ridge == ridge
    for item in range(0, ITEMS, 7):
        others = np.delete(met, item, 1)
        gram = others.T @ others + ridge * np.eye(ITEMS - 1)
        expected = np.linalg.solve(gram, others.T @ met[:, item])
        np.testing.assert_allclose(np.delete(found[:, item], item), expected, atol=1e-12)
        assert found[item, item] == 0


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("name", [*NAMES, "popularity"])
def test_ranks_equal_a_plain_count(sequences, name, split):
    negatives = {"uniform": draw_negatives(sequences, 5, by_popularity=False, seed=1)}
    if name == "popularity":
        found = popularity_ranks(sequences, split, negatives)
        occurrences = np.bincount(np.concatenate(training_items(sequences)), minlength=ITEMS + 1)
        dense = np.broadcast_to(occurrences[1:].astype(float), (ITEMS, ITEMS))
    else:
        found = ranks_of(name, sequences, split, negatives)
        matrix = fit(name, sequences)
        dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    for user in range(USERS):
        *known, true = sequences[user][: -1 if split == "validation" else None].tolist()
        scores = np.zeros(ITEMS)
        for age, item in enumerate(known[:-21:-1] if name != "ease" else sorted({*known})):
            scores += (1 if name == "ease" else 0.7**age) * dense[item - 1]
        # Sums in another order differ in their last bits; those of EASE, an inverse, break ties.
        behind, ahead = (
            set((np.flatnonzero(scores >= scores[true - 1] + margin) + 1).tolist())
            for margin in (1e-12 if "ease" in name else -1e-12, -1e-12)
        )
        drawn = negatives["uniform"][user].tolist()
        for ranking, others in (
            ("full", set(range(1, ITEMS + 1)) - {*known, true}),
            ("full_with_seen", set(range(1, ITEMS + 1)) - {true}),
            *([("uniform", set(drawn))] if drawn[0] else []),
        ):
            low, high = len(others & behind), len(others & ahead)
            assert low <= found[ranking][user] <= high


def test_a_paired_difference_is_that_of_the_difference():
    generator = np.random.default_rng(0)
    ranks, others = generator.integers(0, 30, (2, 400))
    users = np.arange(400)
    found = paired_difference(ranks, others, "hr@10", users)
    assert found.value == pytest.approx((ranks < 10).mean() - (others < 10).mean())
    spread = np.std((ranks < 10) * 1.0 - (others < 10)) / 20
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    # of rankings that agree but for few users it is far smaller than those of either
    similar = np.where(users < 8, others, ranks)
    found = paired_difference(ranks, similar, "hr@10", users)
    alone = bootstrap_intervals(ranks)["hr@10"]
    assert found.high - found.low < (alone[1] - alone[0]) / 3


def test_a_test_reports_baselines_and_who_is_ahead(program, loaded, dataset, tmp_path, capsys):
    data = program("--mode=test", *loaded)[-1]["data"]
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    start = next(at for at, line in enumerate(lines) if line.startswith("model "))
    assert lines[start - 2].split() == ["full", "popular", "uniform"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[start : start + 5]}
    assert list(rows) == ["model", *NAMES]
    for name in NAMES:
        keys = [f"test_{name}{ranking}_{metric}" for ranking in ("", "_popular", "_uniform")
                for metric in ("hr@10", "ndcg@10", "mrr")]  # fmt: skip
        assert [f"{data[key]:.4f}" for key in keys] == rows[name]
    sequences = read_sequences(dataset)
    ranks = ranks_of("markov", sequences, "test", {})["full"]
    assert data["test_markov_hr@10"] == pytest.approx((ranks < 10).mean())
    settings = dict(line.split(": ") for line in lines[start + 5 : start + 9])
    assert list(settings) == list(NAMES)
    for name, numbers in (
        ("markov", (10, 0.25, 0.1, 20, 0.7)),
        ("item_knn", (100, 10, 20, 0.7)),
        ("ease", None),
        ("ease_recent", (500, 20, 0.7)),
    ):
        told = [float(n) for n in re.findall(r"[\d.]+", settings[name])]
        assert told == list(numbers) if numbers else told[0] in (50, 250, 1000)
    for metric in ("hr@10", "ndcg@10"):
        best = max(data[f"test_{name}_{metric}"] for name in NAMES)
        assert data[f"test_lead_{metric}"] == pytest.approx(data[f"test_full_{metric}"] - best)
    # The next item is the last one plus one: a model that learnt it leads, a new one does not.
    untrained = (f"--dataset_path={dataset}", "--max_steps=1", "--lr=0")
    data = program(*untrained, "--baselines=markov")[-1]["data"]
    assert data["test_lead_hr@10_high"] < 0
    assert data["test_lead_ndcg@10_high"] < 0
    *_, line = (x for x in capsys.readouterr().out.splitlines() if x.startswith("Verdict: "))
    assert line.split()[1] == "behind"
    assert_tells(line, "markov", "hr@10", "ndcg@10")
    program(*untrained, "--baselines=")
    assert "Verdict" not in capsys.readouterr().out


RANKS = {
    "first": np.zeros(300, np.int64),
    "tenth": np.full(300, 9),
    "eleventh": np.full(300, 10),
    "half first": np.arange(300) % 2 * 20,
    "all but ten tenth": np.where(np.arange(300) < 10, 30, 9),
}
"""Ranks of 300 users: hit rates 1, 1, 0, 1/2 and 29/30, NDCG 1, 0.289, 0, 1/2 and 0.279."""


@pytest.mark.parametrize(
    ("model", "baselines", "expected"),
    [
        ("first", ["half first", "eleventh"], "ahead half first hr@10 ndcg@10"),
        ("first", ["tenth"], "ahead tenth ndcg@10 no difference tenth hr@10"),
        ("eleventh", ["tenth"], "behind tenth hr@10 ndcg@10"),
        ("half first", ["tenth"], "behind tenth hr@10 ahead tenth ndcg@10"),
        # The best baseline of each metric is another one.
        ("all but ten tenth", ["tenth", "half first"], "behind tenth hr@10 half first ndcg@10"),
        ("tenth", ["tenth"], "no difference tenth hr@10 ndcg@10"),
    ],
)
def test_a_verdict_is_on_hits_and_gains(model, baselines, expected):
    others = {name: RANKS[name] for name in baselines}
    leads = leads_over(others, RANKS[model], np.arange(300))
    assert [lead.metric for lead in leads] == ["hr@10", "ndcg@10"]
    facts = "|".join(["ahead", "behind", r"\bno\b", "difference", r"hr@10", "ndcg@10", *baselines])
    assert " ".join(re.findall(facts, verdict(leads))) == expected


def test_no_lead_is_clear_where_zero_lies_in_the_interval():
    """Of 300 users two have their item by the model alone, and one by the baseline alone."""
    model, baseline = np.full((2, 300), 50)
    model[[0, 1]], baseline[2] = 0, 0
    leads = leads_over({"other": baseline}, model, np.arange(300))
    assert all(lead.low < 0 < lead.value < lead.high for lead in leads)
    assert not re.search("ahead|behind", verdict(leads))


def plain_ease(sequences, ridge, split):
    """Returns the least and the most rank of each target by Steck's formula, in plain NumPy."""
    met, known, truth = np.zeros((USERS, ITEMS)), np.zeros((USERS, ITEMS)), []
    for user, items in enumerate(training_items(sequences)):
        *before, true = sequences[user][: None if split == "test" else -1].tolist()
        met[user, np.array(items, int) - 1] = 1
        known[user, np.array(before, int) - 1] = 1
        truth.append(true - 1)
    inverse = np.linalg.inv(met.T @ met + ridge * np.eye(ITEMS))
    scores = known @ (np.eye(ITEMS) - inverse / np.diag(inverse))
    difference = scores - scores[np.arange(USERS), truth][:, None]
    difference[known > 0] = -1
    difference[np.arange(USERS), truth] = -1
    return (difference > 1e-12).sum(1), (difference > -1e-12).sum(1)


def test_ease_is_stecks_closed_form(sequences):
    """With binary histories of all items, and the lambda that validation chooses."""
    chosen = BASELINES["ease"](sequences).settings.ridge
    gains = {}
    for ridge in (50, 250, 1000):
        least, most = plain_ease(sequences, ridge, "validation")
        assert (least != most).sum() < USERS / 8  # few ties, so a rank tells the formula
        gains[ridge] = np.where(most < 10, 1 / np.log2(most + 2), 0).mean()
    assert chosen == max(gains, key=gains.get)
    assert max(gains.values()) > sorted(gains.values())[-2]
    least, most = plain_ease(sequences, int(chosen), "test")
    found = ranks_of("ease", sequences, "test", {})["full"]
    assert ((least <= found) & (found <= most)).all()
    assert (least != most).sum() < USERS / 8


def test_unknown_baselines_and_a_catalogue_too_large(refused, dataset):
    error = refused(f"--dataset_path={dataset}", "--baselines=markov,knn")
    assert_tells(error, "--baselines", "markov, item_knn, ease, ease_recent, recent", "knn")
    huge = Sequences(np.ones(3, np.int32), np.array([0, 3]), 10**7)
    with refusal("10000000 items", "2910.4 TiB"):
        fit("ease", huge)
