# SPDX-License-Identifier: Apache-2.0
"""Generated ratings: sizes, popularity, order that can be learnt, the same bytes each time."""

import dataclasses
import gzip
import itertools

import numpy as np
import pytest

from preproc.synthetic import ratings as generate_ratings
from preproc.synthetic.ratings import RatingsConfig, blocks, generate
from tests.harness import assert_tells
from tests.preproc.programs import called

CONFIG = {"users": 500, "items": 200, "interactions": 20_000}


def interactions(**changes):
    config = RatingsConfig(output=None, **(CONFIG | changes))
    found = list(blocks(config))
    return [
        np.concatenate([getattr(b, f.name) for b in found]) for f in dataclasses.fields(found[0])
    ]


def test_sizes_are_those_asked_for():
    users, items, ratings, timestamps = interactions()
    assert len(users) == 20_000
    assert np.unique(users).tolist() == list(range(500))
    assert np.bincount(users).min() >= generate_ratings.MIN_LENGTH
    assert (items.min(), items.max()) == (1, 200)
    assert set(ratings.tolist()) == {1, 2, 3, 4, 5}
    same_user = users[1:] == users[:-1]
    assert (np.diff(timestamps)[same_user] > 0).all()


@pytest.mark.parametrize("continuation", [0.0, 0.4, 1.0])
def test_successors_follow_as_often_as_asked(continuation):
    users, items, _, _ = interactions(continuation=continuation)
    same_user = users[1:] == users[:-1]
    pairs = np.zeros((201, 201), np.int64)
    np.add.at(pairs, (items[:-1][same_user], items[1:][same_user]), 1)
    successor = np.argmax(pairs, axis=1)
    hit_rate = (successor[items[:-1]] == items[1:])[same_user].mean()
    # The most frequent follower, without a successor, is the most popular item: share 0.17.
    assert continuation - 0.02 <= hit_rate <= continuation + (1 - continuation) * 0.2 + 0.02


@pytest.mark.parametrize(("exponent", "low", "high"), [(0.0, 0.04, 0.07), (1.2, 0.5, 0.8)])
def test_popularity_follows_its_exponent(exponent, low, high):
    _, items, _, _ = interactions(popularity=exponent, continuation=0.0)
    counts = np.sort(np.bincount(items, minlength=201)[1:])[::-1]
    assert low <= counts[:10].sum() / counts.sum() <= high


def test_bytes_depend_on_the_seed_alone(tmp_path):
    def text(name, **changes) -> bytes:
        config = RatingsConfig(output=tmp_path / name, **(CONFIG | changes))
        generate(config)
        return config.output.read_bytes()

    first = text("a.csv")
    assert text("b.csv") == first
    assert text("c.csv", seed=1) != first
    packed = text("d.csv.gz")
    assert gzip.decompress(packed) == first
    assert text("e.csv.gz") == packed


def test_many_blocks_hold_all_users(monkeypatch):
    monkeypatch.setattr(generate_ratings, "_BLOCK_ROWS", 64)
    users, *_ = interactions()
    assert (len(users), np.unique(users).tolist()) == (20_000, list(range(500)))


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("--users=0", ["--users"]),
        ("--items=1", ["--items"]),
        ("--interactions=2499", ["--interactions", 2499, 2500]),
        ("--format=xml", ["--format", "'xml'"]),
        ("--continuation=1.5", ["--continuation"]),
        ("--seed=-1", ["--seed", -1]),
        ("--output=", ["--output"]),
        ("stray", ["'stray'"]),
    ],
)
def test_bad_flags(tmp_path, flag, facts):
    flags = ["--users=500", "--items=20", "--interactions=3000", f"--output={tmp_path / 'x'}", flag]
    assert_tells(called("generate_ratings", *flags, status=2), *facts)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_on_demand(tmp_path):
    output = tmp_path / "log.csv"
    flags = ["--users=9", "--items=20", "--interactions=90", f"--output={output}"]
    called("generate_ratings", *flags)
    before = output.read_bytes()
    assert "--overwrite" in called("generate_ratings", *flags, "--seed=1", status=2)
    assert output.read_bytes() == before
    called("generate_ratings", *flags, "--seed=1", "--overwrite")
    assert output.read_bytes() != before


def test_titles_tell_the_ranks(tmp_path):
    output, titles = tmp_path / "ratings.csv", tmp_path / "movies.csv"
    flags = ["--users=50", "--items=20", "--interactions=2000", "--continuation=1"]
    called("generate_ratings", *flags, f"--output={output}", f"--titles={titles}")
    raw = [line.split(",")[0] for line in titles.read_text().splitlines()[1:]]
    assert titles.read_text().splitlines()[1] == f"{raw[0]},Rank 1,generated"
    assert sorted(map(int, raw)) == list(range(1, 21))
    histories: dict[str, list[tuple[int, str]]] = {}
    for line in output.read_text().splitlines()[1:]:
        user, item, _, time = line.split(",")
        histories.setdefault(user, []).append((int(time), item))
    for history in histories.values():  # each item is followed by that of the next rank
        ranks = [raw.index(item) for _, item in sorted(history)]
        assert all((a + 1) % 20 == b for a, b in itertools.pairwise(ranks))
    called("generate_ratings", *flags, f"--output={output}", f"--titles={output}", status=2)
    flags += [f"--output={tmp_path / 'a'}", f"--titles={titles}", "--format=amazon_csv"]
    assert_tells(called("generate_ratings", *flags, status=2), "--titles", "--format amazon_csv")
