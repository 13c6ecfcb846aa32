# SPDX-License-Identifier: Apache-2.0
"""Bins whose edges are found: their rule, and that every engine finds the same ones."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preproc.clicks.applied import semantics_of_dataset
from preproc.clicks.engines.native import encode as native_encode
from preproc.clicks.engines.native import number_bins
from preproc.clicks.engines.native.units import NativeSettings
from preproc.files.errors import PreprocError
from recsys.data.manifest import Manifest
from recsys.data.quantiles import quantile_edges
from tests.harness import refusal
from tests.preproc.clicks.rows import assert_same, run, stopped
from tests.preproc.clicks.schema_log import assert_served, columns_of, prepare, write_schema
from tests.tools import needs

KERNEL = needs("compiled Criteo kernel")
SMALL = NativeSettings(unit_bytes=2000, table_bytes=1)
"""Many units and runs of a short log."""


def edges_one_by_one(values: list[float], counts: list[int], bins: int) -> tuple[float, ...]:
    """Finds the edges as the rule says it: values in their order, each in a bin or the next."""
    if len(values) <= bins:
        return tuple(values[1:])
    heavy: set[int] = set()
    rows, left = sum(counts), bins
    while True:
        count, i = max((count, i) for i, count in enumerate(counts) if i not in heavy)
        if count * left < rows:
            break
        heavy.add(i)
        rows, left = rows - count, left - 1
    edges, filled = list[float](), 0
    for i, after in enumerate(values[1:]):
        if i in heavy:
            ends, rows = True, rows - filled
        else:
            filled += counts[i]
            share = rows if left else 0
            is_full = left > 0 and filled * left >= share
            is_half_full = left > 0 and i + 1 in heavy and 2 * filled * left >= share
            ends = is_full or is_half_full
            if ends:
                rows, left = rows - filled, left - 1
        if ends and len(edges) < bins - 1:
            edges.append(after)
        if ends:
            filled = 0
    return tuple(edges)


COUNTS = st.lists(
    st.one_of(st.integers(1, 3), st.integers(1, 40), st.integers(1, 10**12)),
    min_size=1,
    max_size=60,
)


@given(COUNTS, st.integers(2, 20))
def test_edges_are_those_of_the_rule(counts, bins):
    values = np.arange(len(counts)) * 1.5 - 7
    edges = quantile_edges(values, np.array(counts), bins)
    assert edges == edges_one_by_one(values.tolist(), counts, bins)
    assert len(edges) < bins
    assert set(edges) <= set(values.tolist())


def test_a_value_of_many_rows_has_a_bin_of_its_own():
    """Nine rows of ten are 0, as in gains of capital: the other bins share the tail."""
    tail = np.arange(1, 1001.0)
    values, counts = np.append(0.0, tail), np.append(9000, np.ones(1000, np.int64))
    edges = quantile_edges(values, counts, 11)
    assert edges == tuple(range(1, 1000, 100))
    assert quantile_edges(values[:3], counts[:3], 3) == (1.0, 2.0)
    assert quantile_edges(values[:1], counts[:1], 2) == ()


def numbers_of(rng: random.Random, count: int) -> list[list[str]]:
    """Returns rows of an int, a float in many spellings, one of few values, one value, nothing."""
    return [
        [
            rng.choice(["", "0", "0", "0", str(rng.randrange(-50, 5000))]),
            rng.choice(["", "-0", "0.0", "0", "1e1", "10", f"{rng.lognormvariate(3, 2):.2f}"]),
            rng.choice(["1", "2.5", "-3"]),
            rng.choice(["7", ""]),
            "",
        ]
        for _ in range(count)
    ]


COLUMNS = [
    {"name": "shop", "role": "categorical", "type": "hex"},
    {"name": "age", "role": "numerical", "type": "int", "bins": "quantiles:9"},
    {"name": "gain", "role": "numerical", "type": "float", "bins": "quantiles:16"},
    {"name": "few", "role": "numerical", "type": "float", "bins": "quantiles:3"},
    {"name": "one", "role": "numerical", "type": "int", "bins": "quantiles:2"},
    {"name": "none", "role": "numerical", "type": "float", "bins": "quantiles:255"},
    {"name": "given", "role": "numerical", "type": "int", "bins": [3, 5]},
]
NAMES = ["age", "gain", "few", "one", "none"]
SPLITS = {
    "first rows": {"fractions": [0.7, 0.1, 0.2]},
    "at random": {"random": {"fractions": [0.7, 0.1, 0.2], "seed": 5}},
}


def write_numbers(folder, count: int, seed: int) -> list[list[str]]:
    """Writes a log of these columns; returns the numbers of its rows."""
    rng = random.Random(seed)
    table = numbers_of(rng, count)
    lines = [
        f"{rng.choice(['no', 'yes'])};{rng.randrange(5)};{';'.join(row)};{rng.randrange(9)}"
        for row in table
    ]
    header = ";".join(["bought", *(str(column["name"]) for column in COLUMNS)])
    (folder / "log").write_text("\n".join([header, *lines]) + "\n")
    return table


def found(manifest: Manifest) -> dict[str, list[float]]:
    """Returns the edges that a manifest records."""
    columns = manifest.semantics["schema"]["columns"]
    return {column["name"]: column["bins"] for column in columns if column["quantiles"]}


@pytest.mark.parametrize("counted", ["train", "all"])
def test_edges_are_found_in_the_rows_that_are_counted(tmp_path, counted):
    table = write_numbers(tmp_path, 1000, seed=1)
    schema = write_schema(
        tmp_path, columns=COLUMNS, split=SPLITS["first rows"], defaults={"count": counted}
    )
    made = prepare(tmp_path / "log", schema, tmp_path / "made", engine="reference")
    rows = table[: 700 if counted == "train" else 1000]
    for number, name in enumerate(NAMES):
        counts = Counter(float(row[number]) for row in rows if row[number])
        values = sorted(counts)
        bins = int(COLUMNS[1 + number]["bins"].partition(":")[2])
        edges = edges_one_by_one(values, [counts[value] for value in values], bins)
        assert tuple(found(made)[name]) == edges, name
    assert found(made)["few"] == [1, 2.5]
    assert found(made)["one"] == found(made)["none"] == []
    spec, reader = columns_of(tmp_path / "made", "test")
    assert [feature.name for feature in spec.categorical] == [
        *("shop", *(f"{name}_bin" for name in NAMES), "given_bin")
    ]
    assert [feature.cardinality for feature in spec.categorical][3:7] == [4, 2, 1, 4]
    ids = reader.read(0, reader.num_rows).categorical[2]
    tested = table[-reader.num_rows :]
    bins = [np.searchsorted(found(made)["gain"], float(row[1] or 0), "right") for row in tested]
    pairs = {(b, i) for b, row, i in zip(bins, tested, ids.tolist(), strict=True) if row[1]}
    assert len(pairs) == len(dict(pairs)) == len({i for _, i in pairs}), "a bin has one id"
    assert all((i == 0) == (not row[1]) for row, i in zip(tested, ids.tolist(), strict=True))


@KERNEL
@pytest.mark.parametrize("split", [*SPLITS])
@pytest.mark.parametrize("counted", ["train", "all"])
def test_the_native_engine_finds_the_same_edges(tmp_path, monkeypatch, split, counted):
    """In many units, of several files, and merged a few numbers at a time."""
    monkeypatch.setattr(number_bins, "_LEAST_NUMBERS", 7)
    write_numbers(tmp_path, 1500, seed=2)
    header, *lines = (tmp_path / "log").read_text().splitlines()
    (tmp_path / "parts").mkdir()
    for part, rows in enumerate((lines[:11], lines[11:600], lines[600:])):
        (tmp_path / "parts" / f"{part}.csv").write_text("\n".join([header, *rows]) + "\n")
    schema = write_schema(
        tmp_path, columns=COLUMNS, split=SPLITS[split], defaults={"count": counted}
    )
    expected = prepare(tmp_path / "log", schema, tmp_path / "expected", engine="reference")
    assert_same(prepare(tmp_path / "log", schema, tmp_path / "made"), expected)
    assert_same(prepare(tmp_path / "log", schema, tmp_path / "small", settings=SMALL), expected)
    parts = prepare(tmp_path / "parts", schema, tmp_path / "of_parts", settings=SMALL, threads=1)
    assert parts.files == expected.files
    assert found(parts) == found(expected)


FIELDS = st.lists(
    st.one_of(
        st.just(""),
        st.integers(-3, 3).map(str),
        st.floats(-1e300, 1e300).map(lambda x: repr(x if abs(x) < 3e38 else x / 1e270)),
        st.floats(-2, 2).map(lambda x: f"{x:.2f}"),
    ),
    min_size=1,
    max_size=40,
)


@KERNEL
@given(FIELDS, st.integers(2, 9))
def test_engines_find_the_edges_of_any_numbers(tmp_path_factory, fields, bins):
    folder = tmp_path_factory.mktemp("numbers")
    text = "".join(f"{i % 2};{field}\n" for i, field in enumerate(fields))
    (folder / "log").write_text(f"click;x\n{text}")
    columns = [{"name": "x", "role": "numerical", "type": "float", "bins": f"quantiles:{bins}"}]
    schema = write_schema(
        folder, columns=columns, label={"column": "click"}, defaults={}, split={"rows": [-1, 0, 0]}
    )
    expected = prepare(folder / "log", schema, folder / "expected", engine="reference")
    counts = Counter(float(field) for field in fields if field)
    values = sorted(counts)
    edges = edges_one_by_one(values, [counts[value] for value in values], bins)
    assert tuple(found(expected)["x"]) == edges
    small = NativeSettings(unit_bytes=60, table_bytes=1)
    assert_same(prepare(folder / "log", schema, folder / "made", settings=small), expected)


@KERNEL
def test_an_interrupted_run_ends_with_the_same_edges(tmp_path):
    write_numbers(tmp_path, 1500, seed=3)
    schema = write_schema(tmp_path, columns=COLUMNS, split=SPLITS["first rows"])
    expected = prepare(tmp_path / "log", schema, tmp_path / "expected", engine="reference")
    arguments = tmp_path / "log", schema, tmp_path / "made"
    for target, name, after in (
        (number_bins, "quantile_edges", 2),
        (number_bins, "count_bins", 1),
        (native_encode, "read_unit", 3),
    ):
        with stopped(target, name, after):
            prepare(*arguments, settings=SMALL, threads=1)
    merged = len(list((tmp_path / "made.work").rglob("edges_*.bin")))
    assert merged == len(NAMES), "found once"
    assert_same(prepare(*arguments, settings=SMALL), expected)


@KERNEL
def test_new_rows_get_the_bins_of_the_dataset(tmp_path):
    """Served lines and rows that are prepared later, among them numbers beyond all edges."""
    write_numbers(tmp_path, 1200, seed=4)
    schema = write_schema(tmp_path, columns=COLUMNS, split=SPLITS["first rows"])
    made = prepare(tmp_path / "log", schema, tmp_path / "made")
    header, *lines = (tmp_path / "log").read_text().splitlines()
    lines = lines[-240:]
    served, offline = assert_served(tmp_path, lines)
    far = [";".join(["no", "1", "-99", "1e30", "9", "8", "5", "2"])]
    (tmp_path / "later").write_text("\n".join([header, *lines, *far]) + "\n")
    for engine in ("native", "reference"):
        rules = semantics_of_dataset(tmp_path / "made", {})
        fields = {"semantics": rules, "dictionaries": tmp_path / "made", "engine": engine}
        applied = run(tmp_path / "later", tmp_path / engine, **fields)
        assert found(applied) == found(made)
        _, reader = columns_of(tmp_path / engine, "test")
        later = np.stack(reader.read(0, reader.num_rows).categorical, 1)
        assert np.array_equal(later[:-1], served.ids)
        bins = dict(zip(NAMES, later[-1, 1:].tolist(), strict=False))
        assert bins["none"] == 0
        assert bins["one"] == 1
        assert bins["gain"] == offline.categorical[2][np.argmax(offline.numerical[:, 1])]


@KERNEL
def test_numbers_that_do_not_fit_the_memory_are_refused(tmp_path, monkeypatch):
    rng = np.random.default_rng(6)
    text = "".join(f"1;{number!r}\n" for number in rng.random(400_000).tolist())
    (tmp_path / "log").write_text(f"click;x\n{text}")
    columns = [{"name": "x", "role": "numerical", "type": "float", "bins": "quantiles:9"}]
    schema = write_schema(
        tmp_path,
        columns=columns,
        label={"column": "click"},
        defaults={},
        split={"rows": [-1, 0, 0]},
    )
    few = NativeSettings(merge_bytes=2**20)
    made = prepare(tmp_path / "log", schema, tmp_path / "alone", settings=few)
    assert len(found(made)["x"]) == 8, "where a share does not suffice, all memory is used"
    monkeypatch.setattr("preproc.clicks.engines.native.merge.free_budget", lambda limit: 2**24)
    with refusal("x", kind=PreprocError, settings=("memory_limit",)):
        prepare(tmp_path / "log", schema, tmp_path / "made", settings=few)


def test_manifests_of_earlier_releases_have_no_bins_where_none_are_recorded(tmp_path):
    write_numbers(tmp_path, 100, seed=7)
    columns = [*COLUMNS[:1], {"name": NAMES, "role": "ignored"}, COLUMNS[-1]]
    columns.insert(1, {"name": "age", "role": "numerical", "type": "int"})
    columns[2] = {"name": NAMES[1:], "role": "ignored"}
    schema = write_schema(tmp_path, columns=columns)
    prepare(tmp_path / "log", schema, tmp_path / "made", engine="reference")
    path = tmp_path / "made" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    for column in manifest["semantics"]["schema"]["columns"]:
        del column["quantiles"]
        column["bins"] = column["bins"] or []
    path.write_text(json.dumps(manifest))
    spec = semantics_of_dataset(tmp_path / "made", {}).schema.named("categorical")
    assert [column.name for column in spec] == ["shop", "given_bin"]
