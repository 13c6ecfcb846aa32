# SPDX-License-Identifier: Apache-2.0
"""The shuffled training split: its order, its rows, all engines alike, bounded memory, resume."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preproc.clicks import __main__ as clicks_program
from preproc.clicks import shuffle as shuffle_columns
from preproc.clicks.job import semantics_of
from preproc.clicks.rules import ClicksSemantics, shuffle_keys
from preproc.files import workspace
from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from recsys.data.verify.run import verify
from tests import harness
from tests.harness import refusal
from tests.preproc.clicks.rows import run, stopped
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


def seeded(seed: int | None, **fields: object) -> ClicksSemantics:
    return dataclasses.replace(semantics_of("dlrm"), frequency_limit=3, shuffle_seed=seed, **fields)


@pytest.fixture
def small_units(monkeypatch) -> None:
    """Several units and buckets even of few rows."""
    monkeypatch.setattr(shuffle_columns, "LEAST_UNIT_ROWS", 128)
    monkeypatch.setattr(shuffle_columns, "_READ_ROWS", 1)
    monkeypatch.setattr(shuffle_columns, "_CHUNK_ROWS", 50)


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**64 - 2), min_size=1, max_size=50),
)
def test_keys_follow_the_definition(seed, rows):
    keys = shuffle_keys(seed, np.array(rows, np.uint64))
    assert keys.tolist() == [splitmix64(seed, row) for row in rows]


def assert_shuffled(before: Path, after: Path, rows: int, seed: int) -> None:
    """Checks that the files of a folder are those of another in the order of the definition."""
    order = shuffled_order(seed, rows)
    assert {path.name for path in before.iterdir()} <= {path.name for path in after.iterdir()}
    for path in before.iterdir():
        kind = f"V{path.stat().st_size // rows}"
        expected = np.fromfile(path, kind)[order]
        assert np.fromfile(after / path.name, kind).tobytes() == expected.tobytes()


@needs_kernel
def test_training_rows_are_in_the_order_of_the_definition(days, tmp_path, small_units):
    """And nothing else moves; the engines' tests compare parquet and each format alone."""
    plain, made = (
        run(days, tmp_path / str(seed), semantics=seeded(seed), format=BOTH)
        for seed in (None, SEED)
    )
    before, after = (tmp_path / str(seed) / "train" for seed in (None, SEED))
    assert_shuffled(before, after, plain.rows["train"], SEED)
    moved = {name for name in made.files if made.files[name] != plain.files[name]}
    assert moved == {name for name in made.files if name.split("/")[-2:-1] == ["train"]}
    assert (made.rows, made.positives) == (plain.rows, plain.positives)
    assert (made.semantics["shuffle_seed"], plain.semantics["shuffle_seed"]) == (SEED, None)
    assert verify(tmp_path / str(SEED))[0].problems == []
    assert not list(tmp_path.glob("*.*"))


SORTED = """\
label: {column: click}
columns:
- {name: site, role: categorical, type: string}
- {name: ts, role: timestamp, format: unix_s}
split: %s
"""


@pytest.fixture(scope="module")
def sorted_log(tmp_path_factory) -> Path:
    """A folder with a log of 600 rows sorted by their label, a second between two rows."""
    log = tmp_path_factory.mktemp("sorted") / "log.csv"
    rows = (f"{int(i >= 300)},s{i % 7},{1_700_000_000 + i}\n" for i in range(600))
    log.write_text("click,site,ts\n" + "".join(rows))
    return log.parent


def prepared(log: Path, output: Path, *flags: object) -> Path:
    """Runs the command line; returns the dataset."""
    arguments = ("clicks", f"--input={log}", f"--output={output}", "--progress=none", *flags)
    assert clicks_program.main([str(word) for word in arguments]) == 0
    return output


@needs_kernel
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize(
    ("split", "flags", "seed"),
    [
        ("{random: {fractions: [0.7, 0.1, 0.2], seed: 7}}", (), 7),
        ("{fractions: [0.7, 0.1, 0.2]}", (), 0),
        ("{fractions: [0.7, 0.1, 0.2]}", ("--shuffle_seed=3",), 3),
        ("{rows: [420, 60, -1]}", (), None),
        ("{rows: [420, 60, -1]}", ("--split_fractions=0.7,0.1,0.2",), 0),
        ("{files: {train: [log.csv], validation: [], test: []}}", (), None),
        ('{time: {validation: "2023-11-14T22:20", test: "2023-11-14T22:21"}}', (), None),
    ],
)
def test_a_split_that_says_nothing_of_the_order_is_shuffled(
    sorted_log, tmp_path, engine, split, flags, seed
):
    (tmp_path / "schema.yaml").write_text(SORTED % split)
    flags = (f"--schema={tmp_path / 'schema.yaml'}", f"--engine={engine}", *flags)
    made = prepared(sorted_log, tmp_path / "made", *flags)
    last = ("--shuffle_seed=none",)
    plain = prepared(sorted_log, tmp_path / "plain", *flags, *last)
    labels = np.fromfile(plain / "train" / "label.bin", np.uint8)
    assert len(labels) >= 300
    assert not np.any(np.diff(labels.astype(int)) < 0)
    if seed is None:
        assert (made / "train" / "label.bin").read_bytes() == labels.tobytes()
        return
    assert_shuffled(plain / "train", made / "train", len(labels), seed)
    for other in ("validation", "test"):
        for path in (plain / other).iterdir():
            assert (made / other / path.name).read_bytes() == path.read_bytes()


@needs_kernel
def test_new_rows_that_are_split_by_fractions_are_shuffled_too(sorted_log, tmp_path):
    (tmp_path / "schema.yaml").write_text(SORTED % "{rows: [600, 0, 0]}")
    base = prepared(sorted_log, tmp_path / "base", f"--schema={tmp_path / 'schema.yaml'}")
    flags = (f"--dictionaries={base}", "--split_fractions=0.8,0.1,0.1")
    made = prepared(sorted_log, tmp_path / "made", *flags)
    plain = prepared(sorted_log, tmp_path / "plain", *flags, "--shuffle_seed=none")
    assert_shuffled(plain / "train", made / "train", 480, 0)


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
    write_columns(folder / "in", {str(i): width for i, width in enumerate(widths)}, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle_columns, "LEAST_UNIT_ROWS", unit_rows)
        patch.setattr(shuffle_columns, "_READ_ROWS", 1)
        patch.setattr(shuffle_columns, "_CHUNK_ROWS", 37)
        shuffle(folder / "in", folder / "out", rows, seed, threads=threads)
    assert_shuffled(folder / "in", folder / "out", rows, seed)


def test_more_units_than_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr(shuffle_columns, "LEAST_UNIT_ROWS", 2)
    monkeypatch.setattr(shuffle_columns, "_READ_ROWS", 1)
    write_columns(tmp_path / "in", {"a": 4}, 4000)
    with harness.few_descriptors(40):
        shuffle(tmp_path / "in", tmp_path / "out", 4000, SEED)
    assert_shuffled(tmp_path / "in", tmp_path / "out", 4000, SEED)


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
    with refusal("1.0 MiB", kind=PreprocError, settings=("memory_limit",)):
        shuffle(tmp_path / "in", tmp_path / "out", 1000, 0, memory_limit=2**20)


@needs_kernel
def test_failed_shuffle_continues(days, tmp_path, small_units, monkeypatch):
    fields = {"semantics": seeded(SEED), "format": BOTH, "threads": 1}
    expected = run(days, tmp_path / "expected", **fields)
    done: dict[str, list[int]] = {"_UnitWriter": [], "_BucketWriter": []}
    for name, indexes in done.items():
        writer = getattr(shuffle_columns, name)
        write = writer.write

        def noted(self, index, progress, write=write, indexes=indexes) -> None:
            write(self, index, progress)
            indexes.append(index)

        monkeypatch.setattr(writer, "write", noted)
    for name in done:
        with stopped(getattr(shuffle_columns, name), "write", after=4):
            run(days, tmp_path / "made", **fields)
        assert not (tmp_path / "made").exists()
    assert run(days, tmp_path / "made", **fields).files == expected.files
    for indexes in done.values():
        assert len(indexes) > 8
        assert sorted(indexes) == list(range(len(indexes)))  # none twice


CHILD = """
import sys
from pathlib import Path
from tests.preproc.clicks.test_shuffle import shuffle
source, target = map(Path, sys.argv[1:3])
rows, limit = map(int, sys.argv[3:])
shuffle(source, target, rows, 99, memory_limit=limit)
"""


@pytest.mark.release
def test_memory_limit_is_kept(tmp_path):
    """2,000,000 rows of 76 bytes, twice the limit with what sorting takes thrice."""
    rows, limit = 2_000_000, 128 * 2**20
    widths = {"label": 1, "numerical": 26, **{f"cat_{i}": 4 if i < 10 else 1 for i in range(19)}}
    write_columns(tmp_path / "in", widths, rows)
    paths = (tmp_path / "in", tmp_path / "out")
    _, peak = harness.measure_memory("-c", CHILD, *paths, rows, limit)
    assert 2**25 < peak <= limit
    keys = shuffle_keys(99, np.arange(rows, dtype=np.uint64))
    labels = np.fromfile(tmp_path / "in" / "label", np.uint8)
    assert np.array_equal(
        np.fromfile(tmp_path / "out" / "label", np.uint8), labels[np.argsort(keys)]
    )
