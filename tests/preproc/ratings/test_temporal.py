# SPDX-License-Identifier: Apache-2.0
"""Datasets with a temporal split: the cut, the numbers of items, what the files and page say."""

import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from preproc.files.errors import PreprocError
from recsys.data.errors import DatasetError
from recsys.data.manifest import Manifest
from recsys.data.sequences.files import SEQUENCE_SCHEMA, read_sequences
from recsys.data.sequences.split import cut_time
from recsys.data.verify import run as verify
from tests.harness import assert_tells, refusal
from tests.preproc.ratings.oracle import decode, expected, interactions, run
from tests.recsys.data.datasets import sign_again

PART = "sequences/part-0000.parquet"


def write_csv(path: Path, rows) -> Path:
    """Writes ratings as those of ml-latest."""
    lines = [f"{u},{i},{r:g},{t}\n" for u, i, r, t in rows]
    path.write_text("userId,movieId,rating,timestamp\n" + "".join(lines))
    return path


def prepare(folder: Path, rows, split="temporal:0.7", **options) -> Path:
    options = {"min_user_count": 3, "split": split} | options
    return run(write_csv(folder / "ratings.csv", rows), folder / "made", **options)


def problems(root: Path) -> str:
    return "\n".join(verify.verify(root)[0].problems)


@given(st.lists(st.integers(-3, 9), min_size=1, max_size=60), st.integers(1, 99))
def test_the_cut_is_the_time_at_the_quantile(times, percent):
    """So many are before it at most, and with it and its equals more than that."""
    cut = cut_time(np.array(times), Fraction(percent, 100))
    assert cut in times
    assert sum(t < cut for t in times) * 100 <= percent * len(times)
    assert sum(t <= cut for t in times) * 100 > percent * len(times)


def test_the_quantile_is_exact():
    """29 of 100 are before; 0.29 * 100 in floats would be 28.999999999999996."""
    assert cut_time(np.arange(100), Fraction("0.29")) == 29


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), percent=st.sampled_from(["0.5", "0.75", "0.9"]))
def test_a_run_makes_what_the_page_says(seed, percent):
    rows = interactions(200, seed)
    histories, _, _ = expected(rows)
    kept = [(u, i, t) for u, i, _, t in rows if u in histories]
    cut = sorted(t for _, _, t in kept)[int(len(kept) * Fraction(percent))]
    known = Counter(i for _, i, t in kept if t < cut)
    all_items = {i for _, i, _ in kept}
    items = sorted(all_items, key=lambda i: (-known[i], len(i), i.encode()))
    with tempfile.TemporaryDirectory() as folder:
        made = prepare(Path(folder), rows, f"temporal:{percent}")
        assert decode(made) == (histories, items)
        assert problems(made) == ""
        manifest, sequences = Manifest.load(made), read_sequences(made)
    lines, before_cut = [], 0
    for number, (user, history) in enumerate(histories.items()):
        times = sorted(t for u, _, t in kept if u == user)
        start, stop = sequences.offsets[number : number + 2]
        assert sequences.timestamps[start:stop].tolist() == times
        before = sum(t < cut for t in times)
        before_cut += before
        lines.append("\t".join([user, str(before), *history[before:]]) + "\n")
    statistics = manifest.statistics
    assert manifest.semantics["split"] == f"temporal:{percent}"
    assert statistics["cut"] == cut
    assert statistics["split_fingerprint"] == xxhash.xxh3_128("".join(lines).encode()).hexdigest()
    assert statistics["cold_items"] == len(all_items - known.keys())
    assert statistics["cold_users"] == sum(line.split("\t")[1] == "0" for line in lines)
    assert manifest.rows == {"train": before_cut, "validation": 0, "test": len(kept) - before_cut}


def test_times_with_decimals_stay_what_they_are(tmp_path):
    rows = [(u, i, r, t / 4 - 2) for u, i, r, t in interactions(300, 1)]
    made = prepare(tmp_path, rows)
    assert problems(made) == ""
    sequences = read_sequences(made)
    kept = {u for u, count in Counter(row[0] for row in rows).items() if count >= 3}
    assert sequences.timestamps.dtype == np.float64
    assert sorted(sequences.timestamps) == sorted(t for u, _, _, t in rows if u in kept)
    assert Manifest.load(made).statistics["cut"] in sequences.timestamps


@pytest.mark.parametrize(
    "split",
    ["temporal:1.5", "temporal:0.90", "last"],
)
def test_other_splits_are_refused(tmp_path, split):
    with refusal("split", "leave_one_out", "temporal:Q", split, kind=PreprocError):
        prepare(tmp_path, interactions(50, 0), split)


def test_a_cut_that_leaves_nothing_is_refused(tmp_path):
    rows = [(u, i, r, 7) for u, i, r, _ in interactions(50, 0)]
    with refusal("split", "7", kind=PreprocError):
        prepare(tmp_path, rows)
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.csv"]


def test_files_without_times_are_refused(tmp_path):
    (tmp_path / "ml.txt").write_text("1 1\n1 2\n1 3\n")
    with refusal("split", "temporal:0.9", tmp_path / "ml.txt", kind=PreprocError):
        run(tmp_path / "ml.txt", tmp_path / "made", split="temporal:0.9")


def change_times(root: Path, change) -> None:
    table = pq.read_table(root / PART)
    times = change(table.column("timestamps").to_pylist())
    field = table.schema.field("timestamps")
    pq.write_table(table.set_column(2, field, pa.array(times, field.type)), root / PART)
    sign_again(root)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda times: [times[0][::-1], *times[1:]], ("user 0",)),
        (lambda times: [times[0][:-1], *times[1:]], ("timestamps", "items")),
        (lambda times: [[t + 5 for t in own] for own in times], ("manifest.json: cut",)),
    ],
)
def test_verify_finds_wrong_times(tmp_path, change, facts):
    made = prepare(tmp_path, [("0", str(i), 1.0, i) for i in range(4)] + interactions(200, 3))
    change_times(made, change)
    assert_tells(problems(made), *facts)


def test_verify_misses_the_times_that_a_split_needs(tmp_path):
    made = prepare(tmp_path, interactions(200, 3))
    table = pq.read_table(made / PART).drop(["timestamps"])
    pq.write_table(table.cast(SEQUENCE_SCHEMA), made / PART)
    sign_again(made)
    assert_tells(problems(made), "split temporal:0.7", "timestamps")


def test_parts_must_agree_on_times(tmp_path):
    made = prepare(tmp_path, interactions(200, 3))
    table = pq.read_table(made / PART)
    plain = pa.table({"user_id": table.column(0), "items": table.column(1)})
    pq.write_table(plain, made / "sequences/part-0001.parquet")
    with refusal("part-0001.parquet", "timestamps", kind=DatasetError):
        read_sequences(made)
