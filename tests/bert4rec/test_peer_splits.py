# SPDX-License-Identifier: Apache-2.0
"""Temporal splits of real ratings equal those of RecTools and RePlay, user by user."""

import gzip
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from bert4rec.data.split import targets_of, true_items
from bert4rec.data.temporal import split_by_time
from preproc import movielens
from recsys.data.manifest import Manifest
from recsys.data.sequences import read_item_map, read_sequences, read_user_map
from tests import harness
from tests.tools import require

pytestmark = pytest.mark.splitters

PYTHON = harness.REPOSITORY / ".venv-splitters/bin/python"
PROGRAM = Path(__file__).with_name("peer_splits.py")
FILES = {
    "ml-100k": ("ml-100k/u.data.gz", "\t", 0),
    "ml-latest-small": ("ml-latest-small/ratings.csv.gz", ",", 1),
}


def read_rows(path: Path, separator: str, header: int) -> np.ndarray:
    """Returns user, item and time of each row, in file order."""
    with gzip.open(path, "rt") as file:
        return np.loadtxt(
            file, np.int64, delimiter=separator, skiprows=header, usecols=(0, 1, 3),
            converters=lambda text: int(float(text)),
        ).T  # fmt: skip


@pytest.fixture(params=FILES, scope="module")
def prepared(request, real_data, tmp_path_factory):
    """The folder of the dataset, the raw rows and the rows of each split of the others."""
    name, separator, header = FILES[request.param]
    source = real_data / name
    require("real data", source.exists())
    if not PYTHON.exists():
        pytest.fail("run `make splitters` first")
    folder = tmp_path_factory.mktemp("splits")
    made = folder / "made"
    argv = ["movielens", f"--input={source}", f"--output={made}", "--split=temporal:0.9"]
    assert movielens.main(argv) == 0
    rows = read_rows(source, separator, header)
    users, items, times = rows
    cut = Manifest.load(made).statistics["cut"]
    np.savez(folder / "rows.npz", users=users, items=items, times=times, cut=cut, fraction=0.1)
    harness.run(PYTHON, PROGRAM, folder / "rows.npz", folder / "splits.npz", PYTHONPATH=None)
    return made, rows, np.load(folder / "splits.npz")


def by_user(rows: np.ndarray, chosen: np.ndarray) -> dict[int, list[int]]:
    """Returns user -> items of the chosen rows, by time and then file order."""
    users, items, times = rows
    order = chosen[np.lexsort((chosen, times[chosen]))]
    lists: dict[int, list[int]] = {}
    for user, item in zip(users[order].tolist(), items[order].tolist(), strict=True):
        lists.setdefault(user, []).append(item)
    return lists


def raw_targets(made: Path, choice: str) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
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
    made, rows, splits = prepared
    theirs = by_user(rows, splits[f"{peer}_known_users_test"])
    assert len(theirs) > 20
    ours, warm = raw_targets(made, "all")
    assert ours == theirs
    assert warm == by_user(rows, splits[f"{peer}_known_both_test"])
    assert raw_targets(made, "first")[0] == {u: items[:1] for u, items in theirs.items()}
    assert raw_targets(made, "last")[0] == {u: items[-1:] for u, items in theirs.items()}


@pytest.mark.parametrize("peer", ["rectools", "replay", "replay_by_fraction"])
def test_the_histories_up_to_the_cut_and_after_are_theirs(prepared, peer):
    """Cold users included; RePlay finds the same cut from the fraction alone."""
    made, rows, splits = prepared
    names, sequences = read_user_map(made).raw.to_pylist(), read_sequences(made)
    ids = np.array([int(raw) for raw in read_item_map(made).raw.to_pylist()])
    statistics = Manifest.load(made).statistics
    train, test = (by_user(rows, splits[f"{peer}_{side}"]) for side in ("train", "test"))
    before = 0
    for number, name in enumerate(names):
        known = len(train.get(int(name), []))
        history = ids[sequences[number] - 1].tolist()
        assert history[:known] == train.get(int(name), [])
        assert history[known:] == test.get(int(name), [])
        before += known
    assert before == statistics["before_cut"]
    assert statistics["cold_users"] == len(test.keys() - train.keys())
