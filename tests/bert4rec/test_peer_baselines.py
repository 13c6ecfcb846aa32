# SPDX-License-Identifier: Apache-2.0
"""EASE and the metrics of lists on real ratings: those recorded of RecTools, and plain NumPy."""

import json

import numpy as np
import pytest

from preproc import amazon, movielens
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map
from recsys.models.baselines import BASELINES
from recsys.models.ease import Ease, EaseSettings
from recsys.ratings.data.split import validate_some_users
from recsys.ratings.ranking.evaluate import rank_on_host
from recsys.ratings.ranking.metrics import list_metrics, ranking_metrics
from tests.bert4rec import peer_baselines as peer
from tests.bert4rec.peer_splits import FILES, read_rows
from tests.tools import require


@pytest.fixture(scope="module")
def prepared(real_data, tmp_path_factory):
    """The sequences, number of each raw item, raw users, raw rows."""
    source = real_data / FILES["ml-100k"][0]
    require("real data", source.exists())
    made = tmp_path_factory.mktemp("baselines") / "made"
    assert movielens.main(["movielens", f"--input={source}", f"--output={made}"]) == 0
    items = {int(raw): n for n, raw in enumerate(read_item_map(made).raw.to_pylist(), 1)}
    users = [int(raw) for raw in read_user_map(made).raw.to_pylist()]
    return read_sequences(made), items, users, read_rows(real_data, "ml-100k")


def test_ease_is_rectools(prepared):
    sequences, items, _, rows = prepared
    weights = Ease.fit(sequences, EaseSettings(ridge=float(peer.RIDGE))).matrix
    pairs = np.vectorize(items.get)(peer.sampled_pairs(rows)) - 1
    expected = json.loads(peer.EXPECTED.read_text())["ease"]
    np.testing.assert_allclose(weights[pairs[:, 0], pairs[:, 1]], expected, atol=1e-6, rtol=1e-4)


def test_the_metrics_of_lists_are_rectools(prepared):
    sequences, items, users, rows = prepared
    by_raw = peer.varied_lists(rows)
    lists = np.array([[items[item] for item in by_raw[user]] for user in users])
    histories = peer.histories_of(rows)
    truth = np.array([items[histories[user][-1]] for user in users])
    hit = lists == truth[:, None]
    ranks = np.where(hit.any(1), hit.argmax(1), 1 << 31)
    expected = json.loads(peer.EXPECTED.read_text())["metrics"]
    found = list_metrics(lists, sequences)
    for name in ("coverage", "novelty", "diversity"):
        assert found[f"{name}@{peer.LENGTH}"] == pytest.approx(expected[name], rel=1e-6), name
    ranking = ranking_metrics(ranks, [peer.LENGTH])
    for name, key in (("hr", f"hr@{peer.LENGTH}"), ("ndcg", f"ndcg@{peer.LENGTH}"), ("mrr", "mrr")):
        assert ranking[key] == pytest.approx(expected[name], rel=1e-6), name


@pytest.mark.slow
@pytest.mark.release
def test_both_forms_of_ease_on_the_electronics_sample(real_data, tmp_path):
    """The figures of docs/bert4rec.md, those of Steck's form by plain NumPy too."""
    source = real_data / "amazon_electronics_sample" / "electronics_sample.txt.gz"
    require("real data", source.exists())
    made = tmp_path / "made"
    assert amazon.main(["amazon", f"--input={source}", f"--output={made}"]) == 0
    sequences = validate_some_users(read_sequences(made), 1024, read_user_map(made).raw)
    found = {}
    for name in ("ease", "ease_recent"):
        model = BASELINES[name](sequences)
        ranks = rank_on_host(model, sequences, "test", {}).ranks["full"]
        metrics = ranking_metrics(ranks, [10])
        found[name] = model.settings.ridge, round(metrics["hr@10"], 4), round(metrics["ndcg@10"], 4)
    assert found == {
        "ease": (50, 0.0700, 0.0525),
        "ease_recent": (500, 0.0763, 0.0551),
    }

    met = np.zeros((sequences.num_users, sequences.num_items))
    known, truth, validating = met.copy(), [], set(sequences.validation_users.tolist())
    for user in range(sequences.num_users):
        *before, true = sequences[user].tolist()
        trained = before[:-1] if user in validating else before
        met[user, np.array(trained, int) - 1] = 1
        known[user, np.array(before, int) - 1] = 1
        truth.append(true - 1)
    inverse = np.linalg.inv(met.T @ met + 50 * np.eye(sequences.num_items))
    scores = known @ (np.eye(sequences.num_items) - inverse / np.diag(inverse))
    of_truth = scores[np.arange(len(truth)), truth]
    known[np.arange(len(truth)), truth] = 1  # no other item is ranked against itself
    ranks = ((scores >= of_truth[:, None] - 1e-12) & (known == 0)).sum(1)
    assert round((ranks < 10).mean(), 3) == round(found["ease"][1], 3)
    assert np.where(ranks < 10, 1 / np.log2(ranks + 2), 0).mean() == pytest.approx(
        found["ease"][2], abs=2e-4
    )
