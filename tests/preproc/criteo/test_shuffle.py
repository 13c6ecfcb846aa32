# SPDX-License-Identifier: Apache-2.0
"""The shuffled training split: its order, its rows, all engines alike, bounded memory, resume."""

import dataclasses
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preproc.criteo import shuffle as shuffle_columns
from preproc.criteo.job import semantics_of
from preproc.criteo.rules import CriteoSemantics, shuffle_keys
from preproc.files import workspace
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from recsys.data.click_columns import ClickColumns
from recsys.data.manifest import Manifest
from recsys.data.parquet import ParquetReader
from recsys.data.split_binary import SplitBinaryReader
from recsys.data.verify.run import verify
from tests import harness
from tests.preproc.criteo.rows import run, write_days
from tests.tools import needs

needs_kernel = needs("compiled Criteo kernel")

BOTH = ("split", "parquet")
SEED = 1234567


def splitmix64(seed: int, row: int) -> int:
    """The definition again, in whole numbers of any size."""
    mask = 2**64 - 1
    z = (seed + (row + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def shuffled_order(seed: int, rows: int) -> list[int]:
    return sorted(range(rows), key=lambda row: (splitmix64(seed, row), row))


def seeded(seed: int | None, **fields: object) -> CriteoSemantics:
    return dataclasses.replace(semantics_of("dlrm"), frequency_limit=3, shuffle_seed=seed, **fields)


@pytest.fixture
def small_units(monkeypatch) -> None:
    """Several units and buckets even of few rows."""
    monkeypatch.setattr(shuffle_columns, "LEAST_UNIT_ROWS", 128)
    monkeypatch.setattr(shuffle_columns, "_READ_ROWS", 1)
    monkeypatch.setattr(shuffle_columns, "_CHUNK_ROWS", 50)


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    return write_days(tmp_path_factory.mktemp("days"))


@pytest.fixture(scope="module")
def plain_root(days, tmp_path_factory) -> Path:
    """The dataset in input order."""
    root = tmp_path_factory.mktemp("plain") / "made"
    run(days, root, semantics=seeded(None), format=BOTH)
    return root


def test_keys_are_the_published_numbers():
    """The outputs of SplitMix64 from state 1234567 that its ports are checked with."""
    assert shuffle_keys(SEED, np.arange(5, dtype=np.uint64)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**64 - 2), min_size=1, max_size=50),
)
def test_keys_follow_the_definition(seed, rows):
    keys = shuffle_keys(seed, np.array(rows, np.uint64))
    assert keys.tolist() == [splitmix64(seed, row) for row in rows]


def read_split(root: Path, split: str) -> ClickColumns:
    reader = SplitBinaryReader(root, split)
    return reader.read(0, reader.num_rows)


def read_parquet(root: Path, split: str) -> ClickColumns:
    return ClickColumns.concatenate(list(ParquetReader(root, split).groups()))


def assert_rows(found: ClickColumns, expected: ClickColumns, order: list[int]) -> None:
    assert np.array_equal(found.label, expected.label[order])
    assert found.numerical.tobytes() == expected.numerical[order].tobytes()
    for ids, others in zip(found.categorical, expected.categorical, strict=True):
        assert np.array_equal(ids, others[order])


@needs_kernel
@pytest.mark.parametrize("formats", [BOTH, ("split",), ("parquet",)])
def test_every_column_is_in_the_order_of_the_definition(
    days, plain_root, tmp_path, small_units, formats
):
    plain = Manifest.load(plain_root)
    made = run(days, tmp_path / "made", semantics=seeded(SEED), format=formats)
    order = shuffled_order(SEED, plain.rows["train"])
    if "split" in formats:
        expected = read_split(plain_root, "train")
        assert_rows(read_split(tmp_path / "made", "train"), expected, order)
    if "parquet" in formats:
        expected = read_parquet(plain_root, "train")
        assert_rows(read_parquet(tmp_path / "made", "train"), expected, order)
    moved = {name for name in made.files if made.files[name] != plain.files[name]}
    assert moved == {name for name in made.files if name.split("/")[-2:-1] == ["train"]}
    assert (made.rows, made.positives) == (plain.rows, plain.positives)
    assert (made.semantics["shuffle_seed"], plain.semantics["shuffle_seed"]) == (SEED, None)
    assert verify(tmp_path / "made")[0].problems == []
    assert not list(tmp_path.glob("made.*"))


@needs_kernel
def test_without_hard_links(days, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError("no hard links here")

    expected = run(days, tmp_path / "linked", semantics=seeded(1), format=BOTH)
    monkeypatch.setattr(workspace.os, "link", refuse)
    assert run(days, tmp_path / "copied", semantics=seeded(1), format=BOTH).files == expected.files


def write_columns(folder: Path, widths: dict[str, int], rows: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, width in widths.items():
        (folder / name).write_bytes(rng.bytes(rows * width))


def shuffle(
    source: Path, target: Path, rows: int, seed: int, *, memory_limit: int = 2**34, threads: int = 2
) -> None:
    """Shuffles all files of a folder into another."""
    (target / "state").mkdir(parents=True, exist_ok=True)
    shuffle_columns.shuffle_columns(
        [shuffle_columns.ColumnFile(p, target / p.name) for p in sorted(source.iterdir())],
        rows,
        seed,
        target / "state",
        memory_limit,
        threads,
        ProgressReporter("none"),
    )


@settings(max_examples=40)
@given(
    rows=st.integers(1, 700),
    seed=st.integers(0, 2**64 - 1),
    widths=st.lists(st.sampled_from([1, 2, 3, 4, 8, 26, 52]), min_size=1, max_size=5),
    unit_rows=st.sampled_from([1, 16, 128, 1024]),
    threads=st.integers(1, 3),
)
def test_files_of_any_width_and_number_of_units(
    tmp_path_factory, rows, seed, widths, unit_rows, threads
):
    folder = tmp_path_factory.mktemp("any")
    names = {f"{i}.bin": width for i, width in enumerate(widths)}
    write_columns(folder / "in", names, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle_columns, "LEAST_UNIT_ROWS", unit_rows)
        patch.setattr(shuffle_columns, "_READ_ROWS", 1)
        patch.setattr(shuffle_columns, "_CHUNK_ROWS", 37)
        shuffle(folder / "in", folder / "out", rows, seed, threads=threads)
    order = shuffled_order(seed, rows)
    for name, width in names.items():
        before, after = (np.fromfile(folder / side / name, f"V{width}") for side in ("in", "out"))
        assert after.tobytes() == before[order].tobytes()


def test_units_grow_with_the_input_and_shrink_with_the_memory():
    choose = shuffle_columns.choose_unit_rows
    plenty = 2**40
    assert choose(10**6, 80, plenty) == shuffle_columns.LEAST_UNIT_ROWS
    terabyte = 4_195_197_692  # rows of 23 days
    rows = choose(terabyte, 80, plenty)
    pieces = rows / (terabyte / rows)
    assert 1024 <= pieces < 8 * 1024
    assert shuffle_columns.unit_memory(choose(terabyte, 80, 2**26), 80) <= 2**26
    # At most 65,536 buckets: then more memory is needed, and the run says how much.
    assert terabyte / choose(terabyte, 80, 2**20) < 2**16


def test_memory_limit_too_small(tmp_path):
    write_columns(tmp_path / "in", {"a": 4}, 1000)
    with pytest.raises(PreprocError, match=r"`memory_limit` 1\.0 MiB is too small: .* needs"):
        shuffle(tmp_path / "in", tmp_path / "out", 1000, 0, memory_limit=2**20)


def test_the_order_has_no_bias():
    """Rows spread evenly over the shuffled split, wherever they come from (fixed seeds)."""
    n, parts = 160_000, 20
    for seed in range(4):
        keys = shuffle_keys(seed, np.arange(n, dtype=np.uint64))
        assert len(np.unique(keys)) == n
        order = np.argsort(keys)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        assert abs(np.corrcoef(np.arange(n), place)[0, 1]) < 4 / n**0.5
        assert abs(np.corrcoef(place[:-1], place[1:])[0, 1]) < 4 / n**0.5
        # From which twentieth to which: chi-square with 361 degrees of freedom, 4 sigma.
        table = np.histogram2d(np.arange(n), place, bins=parts)[0]
        expected = n / parts**2
        chi2 = ((table - expected) ** 2 / expected).sum()
        freedom = (parts - 1) ** 2
        assert abs(chi2 - freedom) < 4 * (2 * freedom) ** 0.5
    first, second = (np.argsort(shuffle_keys(s, np.arange(n, dtype=np.uint64))) for s in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / n**0.5


@needs_kernel
def test_failed_shuffle_continues(days, tmp_path, small_units, monkeypatch):
    expected = run(days, tmp_path / "expected", semantics=seeded(SEED), format=BOTH)
    done: dict[str, list[int]] = {"_UnitWriter": [], "_BucketWriter": []}
    limits: dict[str, int] = {}

    def limit(name: str) -> None:
        writer = getattr(shuffle_columns, name)
        write = writer.write

        def write_or_fail(self: object, index: int, progress: object) -> None:
            if len(done[name]) == limits.get(name):
                raise OSError("the disk went away")
            write(self, index, progress)
            done[name].append(index)

        monkeypatch.setattr(writer, "write", write_or_fail)

    fields = {"semantics": seeded(SEED), "format": BOTH, "threads": 1}
    for name in done:
        limit(name)
    for name in done:
        limits = {name: 4}
        with pytest.raises(OSError, match="went away"):
            run(days, tmp_path / "made", **fields)
        assert not (tmp_path / "made").exists()
    limits = {}
    assert run(days, tmp_path / "made", **fields).files == expected.files
    for indexes in done.values():
        assert len(indexes) > 8
        assert sorted(indexes) == list(range(len(indexes)))  # none twice


CHILD = """
import sys
from pathlib import Path
from preproc.criteo import shuffle as shuffle_columns
from tests.preproc.criteo.test_shuffle import shuffle
source, target = map(Path, sys.argv[1:3])
rows, unit_rows, limit = map(int, sys.argv[3:])
if unit_rows:
    shuffle_columns.LEAST_UNIT_ROWS, shuffle_columns._READ_ROWS = unit_rows, 1
shuffle(source, target, rows, 99, memory_limit=limit)
"""


@pytest.mark.release
def test_killed_at_any_moment(tmp_path):
    """kill -9 at random moments of both passes, continued until done: always the same bytes."""
    rows = 400_000
    write_columns(tmp_path / "in", {"a": 1, "b": 26, "c": 4, "d": 2}, rows)

    def ends(target: Path, seconds: float | None) -> bool:
        return harness.ends_within(
            seconds, *("-c", CHILD, tmp_path / "in", target, rows, 2**14, 2**34)
        )

    started = time.monotonic()
    assert ends(tmp_path / "expected", None)
    duration = time.monotonic() - started
    rng = random.Random(5)
    kills = 0
    while kills < 4:
        if not ends(tmp_path / "made", rng.uniform(0.2, 1.0) * duration):
            kills += 1
        else:
            for path in (tmp_path / "in").iterdir():
                expected = (tmp_path / "expected" / path.name).read_bytes()
                assert (tmp_path / "made" / path.name).read_bytes() == expected
            shutil.rmtree(tmp_path / "made")


@pytest.mark.release
def test_memory_limit_is_kept(tmp_path):
    """2,000,000 rows of 76 bytes, twice the limit with what sorting takes thrice."""
    rows, limit = 2_000_000, 128 * 2**20
    widths = {"label": 1, "numerical": 26, **{f"cat_{i}": 4 if i < 10 else 1 for i in range(19)}}
    write_columns(tmp_path / "in", widths, rows)
    paths = (tmp_path / "in", tmp_path / "out")
    _, peak = harness.measure_memory("-c", CHILD, *paths, rows, 0, limit)
    assert 2**25 < peak <= limit
    keys = shuffle_keys(99, np.arange(rows, dtype=np.uint64))
    labels = np.fromfile(tmp_path / "in" / "label", np.uint8)
    assert np.array_equal(
        np.fromfile(tmp_path / "out" / "label", np.uint8), labels[np.argsort(keys)]
    )
