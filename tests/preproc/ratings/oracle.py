# SPDX-License-Identifier: Apache-2.0
"""What a ratings run must make, in plain Python from the format page; and ways to run it."""

import random
from collections import Counter
from pathlib import Path

import pytest
import xxhash

from preproc.files import input_file
from preproc.ratings import pipeline as ratings_pipeline
from preproc.ratings.job import MOVIELENS, RatingsJob
from recsys.data.manifest import Manifest
from recsys.data.sequences.files import read_item_map, read_sequences, read_user_map

Row = tuple[str, str, float, int]


def expected(rows: list[Row], *, min_rating=0.0, min_users=3, min_items=0, kcore="iterated"):
    """Returns histories by raw user, in order; raw items in id order; the fingerprint."""
    rows = [r for r in rows if r[2] >= min_rating]
    while True:
        before = len(rows)
        items = Counter(r[1] for r in rows)
        rows = [r for r in rows if items[r[1]] >= min_items]
        users = Counter(r[0] for r in rows)
        rows = [r for r in rows if users[r[0]] >= min_users]
        if kcore == "once" or len(rows) == before:
            break

    def raw_order(raw: str) -> tuple[int, bytes]:
        return len(raw.encode()), raw.encode()

    histories: dict[str, list[str]] = {}
    for user in sorted({r[0] for r in rows}, key=raw_order):
        own = [r for r in rows if r[0] == user]
        histories[user] = [r[1] for r in sorted(own, key=lambda r: r[3])]
    counts = Counter(r[1] for r in rows)
    items = sorted(counts, key=lambda i: (-counts[i], *raw_order(i)))
    lines = [f"{u}\t{len(h) - 2}\t{h[-2]}\t{h[-1]}\n" for u, h in histories.items()]
    return histories, items, xxhash.xxh3_128("".join(lines).encode()).hexdigest()


def repeats(rows: list[Row]) -> int:
    """Counts rows of the same user, item and time as an earlier one."""
    return len(rows) - len({(r[0], r[1], r[3]) for r in rows})


def decode(dataset: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Returns histories by raw user and raw items in id order, from the files."""
    sequences = read_sequences(dataset)
    users, items = read_user_map(dataset).raw.to_pylist(), read_item_map(dataset).raw.to_pylist()
    histories = {u: [items[i - 1] for i in sequences[n]] for n, u in enumerate(users)}
    return histories, items


def run(source: Path, output: Path, *, chunk_bytes: int = 2**20, family=MOVIELENS, **settings):
    """Prepares a dataset; the file too is read in pieces no longer than a chunk."""
    job = RatingsJob(source=family, input=source, output=output, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_file, "BLOCK_BYTES", max(min(chunk_bytes, 2**19), 4))
        return ratings_pipeline.prepare(job, chunk_bytes)


def tree(root: Path) -> dict[str, bytes]:
    """Returns every file of a folder."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


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


def assert_agrees(engine: str, source: Path, folder: Path, **settings) -> Manifest:
    """Makes the dataset with an engine and with the embedded one; returns the former's manifest."""
    run(source, folder / "made", engine=engine, **settings)
    run(source, folder / "expected", **settings)
    made, embedded = Manifest.load(folder / "made"), Manifest.load(folder / "expected")
    first, second = tree(folder / "made"), tree(folder / "expected")
    first.pop("manifest.json"), second.pop("manifest.json")
    assert first == second
    assert made.files == embedded.files
    assert (made.rows, made.statistics) == (embedded.rows, embedded.statistics)
    assert (made.rejected, made.semantics) == (embedded.rejected, embedded.semantics)
    assert (made.engine["name"], embedded.engine["name"]) == (engine, "pyarrow")
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith("made")) == ["made"]
    return made
