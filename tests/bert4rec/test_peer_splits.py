# SPDX-License-Identifier: Apache-2.0
"""Temporal splits of real ratings equal those recorded of RecTools and RePlay, user by user."""

import json
from fractions import Fraction

import numpy as np
import pytest

from preproc import movielens
from recsys.data.manifest import Manifest
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map
from recsys.ratings.data.split import targets_of, true_items
from recsys.ratings.data.temporal import split_by_time
from tests.bert4rec.peer_splits import EXPECTED, FILES, by_user, digest, read_rows
from tests.tools import require


@pytest.fixture(params=FILES, scope="module")
def prepared(request, real_data, tmp_path_factory):
    """The folder of the dataset, the raw rows, and what was recorded of the others."""
    source = real_data / FILES[request.param][0]
    require("real data", source.exists())
    made = tmp_path_factory.mktemp("splits") / "made"
    argv = ["movielens", f"--input={source}", f"--output={made}", "--split=temporal:0.9"]
    assert movielens.main(argv) == 0
    expected = json.loads(EXPECTED.read_text())[request.param]
    return made, read_rows(real_data, request.param), expected


def raw_targets(made, choice):
    """Returns user -> targets of the test, and of those the warm ones, in raw ids."""
    raw = read_user_map(made).raw
    names = raw.to_pylist()
    sequences = split_by_time(read_sequences(made), Fraction("0.9"), choice, "time", raw)
    ids = [int(raw) for raw in read_item_map(made).raw.to_pylist()]
    lists, warm = {}, {}
    for user, item in zip(
        targets_of(sequences, "test").users, true_items(sequences, "test"), strict=True
    ):
        lists.setdefault(int(names[user]), []).append(ids[item - 1])
        if not sequences.temporal.is_cold[item - 1]:
            warm.setdefault(int(names[user]), []).append(ids[item - 1])
    return lists, warm


@pytest.mark.parametrize("peer", ["rectools", "replay"])
def test_the_targets_are_theirs(prepared, peer):
    made, _, expected = prepared
    ours, warm = raw_targets(made, "all")
    assert len(ours) > 20
    assert digest(ours) == expected["splits"][f"{peer}, known users"]["test"]
    assert digest(warm) == expected["splits"][f"{peer}, known both"]["test"]
    assert raw_targets(made, "first")[0] == {user: items[:1] for user, items in ours.items()}
    assert raw_targets(made, "last")[0] == {user: items[-1:] for user, items in ours.items()}


@pytest.mark.parametrize("peer", ["rectools", "replay", "replay by fraction"])
def test_the_histories_up_to_the_cut_and_after_are_theirs(prepared, peer):
    """Cold users included; RePlay finds the same cut from the fraction alone."""
    made, rows, expected = prepared
    statistics = Manifest.load(made).statistics
    assert statistics["cut"] == expected["cut"]
    after = rows[2] >= expected["cut"]
    train, test = (by_user(rows, np.flatnonzero(chosen)) for chosen in (~after, after))
    assert {"train": digest(train), "test": digest(test)} == expected["splits"][peer]
    names, sequences = read_user_map(made).raw.to_pylist(), read_sequences(made)
    ids = np.array([int(raw) for raw in read_item_map(made).raw.to_pylist()])
    for number, name in enumerate(map(int, names)):
        history = ids[sequences[number] - 1].tolist()
        assert history == train.get(name, []) + test.get(name, [])
    assert sum(map(len, train.values())) == statistics["before_cut"]
    assert statistics["cold_users"] == len(test.keys() - train.keys())
