# SPDX-License-Identifier: Apache-2.0
"""Item-to-item baselines: their definitions in plain loops, and how a test reports them."""

import collections

import numpy as np
import pytest

from bert4rec.data.negative_sampler import draw_negatives
from bert4rec.train.baselines import (
    fit,
    item_to_item_ranks,
    neighbour_vectors,
    popularity_ranks,
)
from bert4rec.train.metrics import bootstrap_intervals, paired_difference
from recsys.data.sequences.files import read_sequences
from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError

USERS, ITEMS = 80, 150
NAMES = ("markov", "item_knn", "ease")


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


def test_ease_is_a_ridge_regression_of_each_item_on_the_others(sequences):
    met = np.zeros((USERS, ITEMS))
    for user, items in enumerate(training_items(sequences)):
        met[user, np.array(items, int) - 1] = 1
    found = fit("ease", sequences)
    for item in range(0, ITEMS, 7):
        others = np.delete(met, item, 1)
        gram = others.T @ others + 500 * np.eye(ITEMS - 1)
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
        matrix = fit(name, sequences)
        found = item_to_item_ranks(matrix, sequences, split, negatives)
        dense = matrix if name == "ease" else matrix.toarray()
    for user in range(USERS):
        *known, true = sequences[user][: -1 if split == "validation" else None].tolist()
        scores = np.zeros(ITEMS)
        for age, item in enumerate(known[:-21:-1]):
            scores += 0.7**age * dense[item - 1]
        # Sums in another order differ in their last bits; those of EASE, an inverse, break ties.
        behind, ahead = (
            set((np.flatnonzero(scores >= scores[true - 1] + margin) + 1).tolist())
            for margin in (1e-12 if name == "ease" else -1e-12, -1e-12)
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
    rows = {line.split()[0]: line.split()[1:] for line in lines[start : start + 4]}
    assert list(rows) == ["model", *NAMES]
    for name in NAMES:
        keys = [f"test_{name}{ranking}_{metric}" for ranking in ("", "_popular", "_uniform")
                for metric in ("hr@10", "ndcg@10", "mrr")]  # fmt: skip
        assert [f"{data[key]:.4f}" for key in keys] == rows[name]
    sequences = read_sequences(dataset)
    ranks = item_to_item_ranks(fit("markov", sequences), sequences, "test", {})["full"]
    assert data["test_markov_hr@10"] == pytest.approx((ranks < 10).mean())
    # The next item is the last one plus one: a model that learnt it leads, a new one does not.
    assert lines[start + 4].startswith("Model less ")
    untrained = (f"--dataset_path={dataset}", "--max_steps=1", "--lr=0")
    program(*untrained, "--baselines=markov")
    *_, verdict = (x for x in capsys.readouterr().out.splitlines() if x.startswith("Model less"))
    assert verdict.startswith("Model less markov, ndcg@10 of full: -")
    assert verdict.endswith("; markov is ahead, train on")
    program(*untrained, "--baselines=")
    assert "Model less" not in capsys.readouterr().out


def test_unknown_baselines_and_a_catalogue_too_large(refused, dataset):
    error = refused(f"--dataset_path={dataset}", "--baselines=markov,knn")
    assert "--baselines must be among markov, item_knn, ease, recent; got knn" in error
    huge = Sequences(np.ones(3, np.int32), np.array([0, 3]), 10**7)
    with pytest.raises(
        UserError, match=r"10000000 items need 2182.8 TiB of memory; .* are available"
    ):
        fit("ease", huge)
