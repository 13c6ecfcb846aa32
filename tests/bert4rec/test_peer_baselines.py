# SPDX-License-Identifier: Apache-2.0
"""EASE and the metrics of lists equal those recorded of RecTools on real ratings."""

import json

import numpy as np
import pytest

from bert4rec.train.baselines import fit_ease
from bert4rec.train.metrics import list_metrics, ranking_metrics
from preproc import movielens
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map
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
    weights = fit_ease(sequences, (int(peer.RIDGE),))[0]
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
