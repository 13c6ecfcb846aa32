# SPDX-License-Identifier: Apache-2.0
"""Ratings through the real NVTabular on the CPU: the bytes of the embedded engine."""

import gzip
import random

import pytest

from dataspec.manifest import Manifest
from preproc import nvtabular_ratings
from preproc.errors import PreprocError
from preproc.ratings_job import AMAZON, MOVIELENS
from tests.preproc import nvtabular_environment
from tests.preproc.ratings_oracle import decode, expected, run, tree

pytestmark = pytest.mark.nvtabular


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with nvtabular_environment.start(tmp_path_factory.mktemp("nvtabular")) as process:
        yield process


@pytest.fixture(autouse=True)
def requests(shared, monkeypatch):
    return nvtabular_environment.share(shared, nvtabular_ratings, monkeypatch)


def interactions(rows: int, seed: int) -> list[tuple[str, str, float, int]]:
    """Returns rows with a long tail of users and items, and many equal times."""
    rng = random.Random(seed)
    return [
        (
            str(int(rng.paretovariate(0.6)) % 150),
            str(int(rng.paretovariate(0.5)) % 120),
            rng.choice([1.0, 2.5, 3.5, 4.0, 5.0]),
            rng.randrange(-3, 40),
        )
        for _ in range(rows)
    ]


def assert_same(source, tmp_path, **settings) -> Manifest:
    """Makes the dataset with both engines; returns NVTabular's manifest."""
    run(source, tmp_path / "made", engine="nvtabular", **settings)
    run(source, tmp_path / "expected", **settings)
    made, embedded = Manifest.load(tmp_path / "made"), Manifest.load(tmp_path / "expected")
    first, second = tree(tmp_path / "made"), tree(tmp_path / "expected")
    first.pop("manifest.json"), second.pop("manifest.json")
    assert first == second
    assert made.files == embedded.files
    assert (made.rows, made.statistics) == (embedded.rows, embedded.statistics)
    assert (made.rejected, made.semantics) == (embedded.rejected, embedded.semantics)
    assert (made.engine["name"], embedded.engine["name"]) == ("nvtabular", "pyarrow")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("made")) == ["made"]
    return made


@pytest.mark.parametrize("kcore", ["iterated", "once"])
def test_movielens(tmp_path, kcore, requests):
    """More than ten parts and, iterated, several passes; bad rows are set aside."""
    rows = interactions(1600, seed=1)
    lines = [f"{u}::{i}::{r:g}::{t}" for u, i, r, t in rows]
    lines[700] = "not a row"
    source = tmp_path / "ratings.dat"
    source.write_text("\n".join(lines))
    settings = {"min_rating": 2.5, "min_user_count": 6, "min_item_count": 9, "kcore": kcore}
    quarantine = {"bad_rows": "quarantine", "max_bad_fraction": 0.01, "chunk_bytes": 2000}
    made = assert_same(source, tmp_path, **settings, **quarantine)
    assert made.statistics["kcore_passes"] == (1 if kcore == "once" else pytest.approx(4, abs=2))
    assert sum(made.rejected.values()) == 1
    assert requests["filter"] > 2
    kept = rows[:700] + rows[701:]
    limits = {"min_rating": 2.5, "min_users": 6, "min_items": 9, "kcore": kcore}
    histories, items, fingerprint = expected(kept, **limits)
    assert decode(tmp_path / "made") == (histories, items)
    assert made.statistics["split_fingerprint"] == fingerprint


def test_amazon_packed_and_without_filters(tmp_path):
    rows = interactions(300, seed=2)
    lines = [f"A{u}X,B00000{int(i):04d},{r},{1400000000 + t}" for u, i, r, t in rows]
    source = tmp_path / "ratings.csv"
    source.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    assert_same(source, tmp_path, family=AMAZON, min_user_count=3, min_item_count=0)


def test_text_without_times(tmp_path):
    rows = sorted(interactions(200, seed=3), key=lambda row: int(row[0]))
    source = tmp_path / "ml.txt"
    source.write_text("".join(f"{int(u) + 1} {int(i) + 1}\n" for u, i, _, _ in rows))
    assert_same(source, tmp_path, family=MOVIELENS)


@pytest.mark.parametrize("settings", [{"min_rating": 5.5}, {"min_user_count": 1000}])
def test_nothing_is_left(tmp_path, settings):
    source = tmp_path / "ratings.dat"
    source.write_text("".join(f"{u}::{i}::{r:g}::{t}\n" for u, i, r, t in interactions(50, 4)))
    with pytest.raises(PreprocError, match=r"no interaction is left of 50 after --min_rating"):
        run(source, tmp_path / "made", engine="nvtabular", **settings)
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.dat"]
