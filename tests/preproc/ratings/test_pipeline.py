# SPDX-License-Identifier: Apache-2.0
"""Whole runs against plain Python: filters, ids, time order, split; the same bytes each time."""

import dataclasses
import gzip
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preproc.ratings import stages as ratings_stages
from preproc.ratings.engines import pyarrow as pyarrow_ratings
from preproc.ratings.job import AMAZON, MOVIELENS
from preproc.synthetic import ratings as generate_ratings
from preproc.synthetic.ratings import FORMATS, RatingsConfig
from recsys.data.manifest import Manifest, file_checksum
from recsys.data.verify import run as verify
from tests.harness import refusal
from tests.preproc.ratings.oracle import decode, expected, interactions, repeats, run, tree

ROWS = st.lists(
    st.tuples(
        st.integers(0, 12).map(str),
        st.integers(0, 12).map(str),
        st.sampled_from([1.0, 3.5, 4.0, 5.0]),
        st.integers(-2, 2),
    ),
    min_size=1,
    max_size=80,
)


def write_dat(path: Path, rows) -> Path:
    path.write_text("".join(f"{u}::{i}::{r:g}::{t}\n" for u, i, r, t in rows))
    return path


@settings(max_examples=80)
@given(
    rows=ROWS,
    min_rating=st.sampled_from([0.0, 3.5, 3.6]),
    min_users=st.integers(3, 5),
    min_items=st.integers(0, 4),
    kcore=st.sampled_from(["once", "iterated"]),
    chunk_bytes=st.integers(1, 300),
)
def test_a_run_makes_what_the_page_says(rows, min_rating, min_users, min_items, kcore, chunk_bytes):
    histories, items, fingerprint = expected(
        rows, min_rating=min_rating, min_users=min_users, min_items=min_items, kcore=kcore
    )
    limits = {"min_user_count": min_users, "min_item_count": min_items}
    with tempfile.TemporaryDirectory() as folder:
        source = write_dat(Path(folder) / "ratings.dat", rows)
        output = Path(folder) / "made"

        def make() -> None:
            run(
                source,
                output,
                chunk_bytes=chunk_bytes,
                min_rating=min_rating,
                kcore=kcore,
                **limits,
            )

        if not histories:
            with refusal(*limits.values(), settings=("min_rating", *limits)):
                make()
            assert [p.name for p in Path(folder).iterdir()] == ["ratings.dat"]
            return
        make()
        assert decode(output) == (histories, items)
        manifest = Manifest.load(output)
        assert manifest.statistics["split_fingerprint"] == fingerprint
        assert verify.verify(output)[0].problems == []


def test_times_far_apart_are_ordered(tmp_path):
    times = [10**18 - 1, -(10**18) + 1, 0, 5, -5]
    rows = [(str(u), str(i), 4.0, t) for i, t in enumerate(times) for u in range(5)]
    source = write_dat(tmp_path / "r.dat", rows)
    histories, _ = decode(run(source, tmp_path / "made"))
    assert histories == {str(u): ["1", "4", "2", "3", "0"] for u in range(5)}


def test_ids_are_by_count_then_by_length_then_by_bytes(tmp_path):
    rows = ["u b", "u a", "u aa", "u b", "u Z", "u 10", "u 9"]
    source = tmp_path / "r.txt"
    source.write_text("\n".join(rows))
    _, items = decode(run(source, tmp_path / "made"))
    assert items == ["b", "9", "Z", "a", "10", "aa"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_same_histories(tmp_path, name):
    config = RatingsConfig(
        output=tmp_path / "log.gz", users=60, items=40, interactions=900, format=name, seed=3
    )
    generate_ratings.generate(config)
    family = AMAZON if name.startswith("amazon") else MOVIELENS
    made = run(config.output, tmp_path / "made", family=family, min_user_count=5, min_item_count=5)
    text = dataclasses.replace(config, output=tmp_path / "log.txt", format="text")
    generate_ratings.generate(text)
    plain = run(text.output, tmp_path / "plain", min_user_count=5, min_item_count=5)
    histories, _ = decode(made)
    if family is AMAZON:
        histories = {str(int(u[1:])): [str(int(i[1:])) for i in h] for u, h in histories.items()}
    assert histories == decode(plain)[0]


@pytest.mark.parametrize("name", ["movielens_csv", "movielens_dat", "amazon_json", "text"])
def test_bytes_depend_neither_on_chunks_nor_on_packing(tmp_path, monkeypatch, name):
    monkeypatch.setattr(pyarrow_ratings, "_MIN_PENDING", 20)
    config = RatingsConfig(
        output=tmp_path / "log", users=70, items=300, interactions=1500, format=name
    )
    generate_ratings.generate(config)
    lines = config.output.read_bytes().split(b"\n")
    lines[40:40] = [b"not a row", b"1,2"]
    config.output.write_bytes(b"\n".join(lines))
    family = AMAZON if name.startswith("amazon") else MOVIELENS
    settings = {"family": family, "min_user_count": 5, "min_item_count": 3}
    settings |= {"max_bad_fraction": 0.01}
    whole = tree(run(config.output, tmp_path / "whole", **settings))
    assert whole["quarantine.csv"].count(b"\n") == 3
    for chunk_bytes in (600, 5_000, 30_000):
        made = run(config.output, tmp_path / f"c{chunk_bytes}", chunk_bytes=chunk_bytes, **settings)
        assert tree(made) == whole
    packed = tmp_path / "packed" / "log"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(config.output.read_bytes()))
    found = tree(run(packed, tmp_path / "from_packed", **settings))
    assert found.keys() == whole.keys()
    del found["manifest.json"], whole["manifest.json"]  # it names size and checksum of the source
    assert found == whole


@pytest.mark.parametrize("split", ["leave_one_out", "temporal:0.8"])
@pytest.mark.parametrize("chunk_bytes", [100, 2**20])
def test_new_rows_get_the_items_of_a_dataset(tmp_path, split, chunk_bytes):
    rows = interactions(900, seed=4)
    earlier = run(write_dat(tmp_path / "earlier.dat", rows[:300]), tmp_path / "earlier")
    items = decode(earlier)[1]
    new = write_dat(tmp_path / "new.dat", rows[300:])
    settings = {"split": split, "chunk_bytes": chunk_bytes, "min_rating": 2.5}
    made = run(new, tmp_path / "made", dictionaries=earlier, **settings)
    known = [row for row in rows[300:] if row[1] in items]
    histories, _, fingerprint = expected(known, min_users=5, min_rating=2.5)
    assert decode(made) == (histories, items)
    manifest = Manifest.load(made)
    assert manifest.semantics["dictionaries"] == [Manifest.load(earlier).fingerprint]
    assert manifest.statistics["dropped_by_dictionaries"] == 600 - len(known) > 0
    assert manifest.source_files[0]["rows"] == 600
    if split == "leave_one_out":
        assert manifest.statistics["split_fingerprint"] == fingerprint
    assert verify.verify(made)[0].problems == []
    again = run(new, tmp_path / "again", dictionaries=made, **settings)
    assert decode(again) == (histories, items)
    assert Manifest.load(again).semantics["dictionaries"][1:] == manifest.semantics["dictionaries"]


def test_items_of_another_folder_are_refused(tmp_path):
    new = write_dat(tmp_path / "new.dat", [("1", "1", 4.0, time) for time in range(9)])
    earlier = run(write_dat(tmp_path / "b.dat", [("1", "2", 4.0, 0)] * 9), tmp_path / "earlier")
    for folder, facts in ((tmp_path, ["manifest.json"]), (earlier, [new, earlier])):
        with refusal(*facts, settings=("dictionaries",)):
            run(new, tmp_path / "made", dictionaries=folder)
    other = run(new, tmp_path / "other")
    (earlier / "item_map.parquet").write_bytes((other / "item_map.parquet").read_bytes())
    with refusal("item_map.parquet", settings=("dictionaries",)):
        run(new, tmp_path / "made", dictionaries=earlier)


def test_the_manifest_tells_what_was_done(tmp_path):
    rows = [(str(u), str(i), float(1 + (u + i) % 5), u * i) for u in range(8) for i in range(8)]
    source = write_dat(tmp_path / "ratings.dat", rows)
    made = run(tmp_path, tmp_path.with_name("made_elsewhere"), min_rating=2, min_item_count=6)
    manifest = Manifest.load(made)
    assert manifest.kind == "sequences"
    statistics = manifest.statistics
    assert statistics["dropped_by_min_rating"] == sum(r[2] < 2 for r in rows)
    left = statistics["interactions"]
    assert left == 64 - statistics["dropped_by_min_rating"] - statistics["dropped_by_kcore"]
    users = statistics["users"]
    assert manifest.rows == {"train": left - 2 * users, "validation": users, "test": users}
    assert manifest.cardinalities == [statistics["items"] + 1]
    assert manifest.source_files == [
        {
            "name": "ratings.dat",
            "bytes": source.stat().st_size,
            "rows": 64,
            "rejected": 0,
            "xxh3_128": file_checksum(source),
        }
    ]
    assert manifest.semantics == {
        "source": "movielens",
        "format": "dat",
        "columns": ["user", "item", "rating", "timestamp"],
        "min_rating": 2,
        "min_user_count": 5,
        "min_item_count": 6,
        "kcore": "iterated",
        "order": "timestamp, then file order",
        "split": "leave_one_out",
    }


@pytest.mark.parametrize(
    ("kcore", "users", "passes"), [("once", ["0", "2", "3"], 1), ("iterated", ["2", "3"], 2)]
)
def test_passes_differ_where_a_user_takes_items_along(tmp_path, kcore, users, passes):
    """User 1 is short, and its going makes item b short, whose going makes user 0 short."""
    source = tmp_path / "r.txt"
    source.write_text("0 a\n0 b\n0 c\n1 a\n1 b\n2 a\n2 c\n2 d\n3 a\n3 c\n3 d\n")
    made = run(source, tmp_path / "made", kcore=kcore, min_item_count=2)
    assert [*decode(made)[0]] == users
    assert Manifest.load(made).statistics["kcore_passes"] == passes


@pytest.mark.parametrize("slice_rows", [1, 3, 2**20])
def test_repeats_are_counted_by_their_definition(tmp_path, monkeypatch, slice_rows):
    monkeypatch.setattr(ratings_stages, "_SLICE_ROWS", slice_rows)
    rows = [(u, str(int(i) % 7), r, t % 4) for u, i, r, t in interactions(900, seed=3)]
    users = Counter(r[0] for r in rows)
    kept = [r for r in rows if users[r[0]] >= 3]
    made = run(write_dat(tmp_path / "r.dat", rows), tmp_path / "made", min_user_count=3)
    assert Manifest.load(made).statistics["repeated_rows"] == repeats(kept) > 100
    same = [("1", str(i % 5), 4.0, 7) for i in range(40)]  # one time alone
    made = run(write_dat(tmp_path / "one.dat", same), tmp_path / "one")
    assert Manifest.load(made).statistics["repeated_rows"] == 35
