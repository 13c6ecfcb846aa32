# SPDX-License-Identifier: Apache-2.0
"""Every key of a schema, beside every other: it changes the dataset, or is refused by its name."""

import functools
import itertools
import operator
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from preproc.clicks.engines.reference import (
    add_bins,
    build_dictionaries,
    encode,
    find_edges,
    read_rows,
)
from preproc.clicks.job import semantics_of_schema
from preproc.clicks.schema import read
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.ratings.format import load_formats

Entry = dict[str, Any]

ROWS = 60
TEXTS = {
    "int": ["-3", "1", "2", "2", "3", "4", "", "n/a", "90"],
    "float": ["-3.5", "0.5", "2.5", "2.5", "", "n/a", "90"],
    "hex": ["a", "b", "b", "f", "f", "c", "d", "e", "", "n/a"],
    "string": ["a", '"b"', "b", "f", "f", "c", "d", "e", "", "n/a"],
    "categorical int": ["1", "2", "2", "-7", "-7", "3", "4", "5", "", "n/a"],
    "list": [
        "a:1|b:.5",
        "b:1|a:2|f:3",
        "b:1|c:2",
        "f:1|a/b:2|d:3",
        "",
        "n/a",
        *("a:9/b:1/f:2", "c:1/b:1/a:3", "g:1|b:1", "c:1", "e:2", "d:3"),
        "d:1|e:2",
    ],
    "list hex": [
        *("a|b", "b|a|f", "f|a|b|d", "", "n/a", "d|e", "c/b/a", "f/d/e", "c/b"),
        *("c:1|b:2", "c:3", "b:1", "e:2|d:1", "d:1", "e:1|f:2", "a:2|b:1|f:1"),
    ],
    "timestamp": [
        *("2026-03-01T01:00", "2026-03-02T23:30", "2026-03-07T23:30", "2026-03-08T23:30"),
        *("2026-03-02T23:40Z", "2026-03-07T23:50Z", "2026-03-07", "2026-03-09T00:10Z", "n/a", ""),
    ],
}
"""Values of the column `x`, by its kind."""

OTHER_VALUES: dict[str, list[Any]] = {
    "missing": [["n/a"]],
    "group": [True],
    "type": ["int", "float", "hex", "string"],
    "transform": ["log", "none", "standardise", "signed_log"],
    "min": [2],
    "offset": [3],
    "mean": [0.5],
    "deviation": [2],
    "bins": [[1, 3], "quantiles:2"],
    "buckets": [3],
    "frequency_limit": [1, 8, 12],
    "max_ids": [1, 4],
    "vocabulary": ["v"],
    "separator": ["/"],
    "weight_separator": [":"],
    "max_length": [1],
    "keep": ["first"],
    "pooling": ["sum"],
    "format": ["%Y-%m-%dT%H:%M"],
    "time_zone": ["+01:00"],
    "features": [["hour", "weekday"], ["weekend"]],
}
"""Values of each key that differ from its default; of some, one that differs from another."""

KINDS: dict[str, tuple[str, Entry]] = {
    "int": ("int", {"role": "numerical", "type": "int"}),
    **{
        f"float {transform}": (
            "float", {"role": "numerical", "type": "float", "transform": transform}
        )
        for transform in OTHER_VALUES["transform"]
    },
    **{
        f"categorical {kind}": (text, {"role": "categorical", "type": kind})
        for kind, text in {"hex": "hex", "string": "string", "int": "categorical int"}.items()
    },
    "list": ("list", {"role": "categorical_list", "type": "string", "max_length": 2}),
    "list of hex": ("list hex", {"role": "categorical_list", "type": "hex", "max_length": 2}),
    "time": ("timestamp", {"role": "timestamp"}),
    "time with features": ("timestamp", {"role": "timestamp", "features": ["hour", "weekday"]}),
    "ignored": ("string", {"role": "ignored"}),
    "label": ("string", {"role": "label"}),
}  # fmt: skip
ALL_KEYS = sorted({key for keys in read._KEYS.values() for key in keys} - {"name", "role"})


def schema_of(entry: Entry, **top: Any) -> dict[str, Any]:
    """Returns a schema whose second column is x; rows are split by a hash of `item`."""
    is_label = entry["role"] == "label"
    columns = [
        {"name": "x", **entry},
        {"name": "other", "role": "categorical", "type": "string"},
        {"name": "item", "role": "categorical", "type": "string", "vocabulary": "v"},
        {"name": "shop", "role": "categorical", "type": "string", "vocabulary": "v"},
        {"name": "when2", "role": "timestamp"},
    ]
    if is_label:
        columns.insert(0, {"name": "click", "role": "ignored"})
    label = {"column": "x", "positive": ["f"], "negative": "other"}
    return {
        "label": label if is_label else {"column": "click"},
        "columns": columns,
        "split": {"random": {"fractions": [0.6, 0.2, 0.2], "by": "item"}},
        **top,
    }


def dataset_of(folder: Path, text: str, schema: dict[str, Any]) -> tuple[object, ...]:
    """Returns all that a dataset holds, and the rows that are left out."""
    path, log = folder / "schema.yaml", folder / "log.csv"
    path.write_text(yaml.safe_dump(schema, sort_keys=False))
    semantics = semantics_of_schema(path, {})
    rng = random.Random(3)
    lines = ["click,x,other,when2,item,shop"]
    for _ in range(ROWS):
        fields = [rng.choice("01"), rng.choice(TEXTS[text]), rng.choice("abcd"), "2026-03-01"]
        item, shop = rng.choice("abcdef"), rng.choice("abcdef")
        if fields[1] == "n/a" and fields[0] == "1":
            item = ""  # the row is split by all its columns
        lines.append(",".join([*fields, item, shop]))
    log.write_text("\n".join(lines) + "\n")
    row_format = semantics.row_format(log, lines[0].encode())
    rows, rejected = read_rows(InputFile.open(log), row_format, semantics)
    count = len(rows.label) if semantics.dictionary_days == "all" else int((rows.split == 0).sum())
    semantics = semantics.with_edges(find_edges(rows, count, semantics))
    add_bins(rows, semantics)
    dictionaries, _ = build_dictionaries(rows, count, semantics)
    columns = encode(rows, dictionaries, semantics)
    spec = semantics.feature_spec(tuple(len(keys) + 1 for keys in dictionaries))
    return (
        spec,
        [list(keys) for keys in dictionaries],
        [(row.line_number, row.reason) for row in rejected],
        columns.label.tolist(),
        np.nan_to_num(columns.numerical).tolist(),
        [ids.tolist() for ids in columns.categorical],
        [
            (own.ids.tolist(), own.offsets.tolist(), own.weights.tolist(), own.is_mean)
            for own in columns.lists
        ],
        rows.group.tolist(),
        rows.split.tolist(),
    )


def outcome(folder: Path, kind: str, keys: Entry, **top: Any) -> object:
    """Returns what a dataset holds, or the key that is refused."""
    text, entry = KINDS[kind]
    try:
        return dataset_of(folder, text, schema_of(entry | keys, **top))
    except PreprocError as error:
        where, key, _ = str(error).removeprefix(f"{folder / 'schema.yaml'}:").split(": ", 2)
        assert where.isdigit()
        return key.removeprefix("columns.")


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_changes_the_dataset_or_is_refused_beside_each_other_key(kind, tmp_path):
    own = KINDS[kind][1]
    before: dict[str, object] = {}

    def of(keys: Entry) -> object:
        return before.setdefault(str(keys), outcome(tmp_path, kind, keys))

    assert isinstance(of({}), tuple)
    refused = {
        key
        for key in ALL_KEYS
        if all(of({key: value}) == key for value in OTHER_VALUES[key] if own.get(key) != value)
    }
    taken = [key for key in ALL_KEYS if key not in refused]
    for key, beside in itertools.product(taken, [None, *taken]):
        if key == beside or (key, beside) == ("time_zone", "format"):
            continue  # local times have the hours that they say, whatever their zone
        changes = []
        for value, other in itertools.product(OTHER_VALUES[key], OTHER_VALUES.get(beside, [None])):
            base = {} if beside is None else {beside: other}
            without, made = of(base), of({**base, key: value})
            if isinstance(without, tuple) and own.get(key) != value:
                changes.append(made in (key, beside) or made != without)
        assert any(changes) or not changes, (key, beside)


CUTS = {"validation": "2026-03-03", "test": "2026-03-08"}


@pytest.mark.parametrize(
    ("kind", "key", "split"),
    [
        ("time", "time_zone", {"time": {"column": "x", **CUTS}}),
        ("ignored", "missing", {"random": {"fractions": [0.6, 0.2, 0.2], "by": "x"}}),
        ("ignored", "missing", {"random": {"fractions": [0.6, 0.2, 0.2]}}),
    ],
)  # fmt: skip
def test_what_a_column_that_splits_the_rows_has(kind, key, split, tmp_path):
    """The same key changes nothing in a column that splits none, and is refused there."""
    given = {key: OTHER_VALUES[key][0]}
    assert outcome(tmp_path, kind, given, split={"fractions": [0.6, 0.2, 0.2]}) == key
    made, without = (outcome(tmp_path, kind, keys, split=split) for keys in (given, {}))
    assert isinstance(made, tuple), made
    assert made != without


@pytest.mark.parametrize(
    ("kind", "top", "refused"),
    [
        ("float none", {"defaults": {"min": 2}}, "defaults.min"),
        ("float standardise", {"defaults": {"offset": 2}}, "defaults.offset"),
        ("float log", {"defaults": {"offset": 2}}, ""),
        ("int", {"defaults": {"min": 2}}, ""),
        ("time", {"numbers": "float16"}, "numbers"),
        ("int", {"numbers": "float16"}, ""),
        ("int", {"defaults": {"count": "all"}}, ""),
        ("time", {"defaults": {"frequency_limit": 1}}, ""),
        ("time", {"missing": ["n/a"]}, ""),
        ("int", {"dialect": {"header": False}}, "label.column"),
        ("categorical string", {"dialect": {"quote": "none"}}, ""),
        ("int", {"label": {"column": "click", "positive": ["0"], "negative": ["1"]}}, ""),
        ("int", {"label": {"column": "click", "negative": ["2"]}}, ""),
        ("int", {"split": {"random": {"fractions": [0.6, 0.2, 0.2], "by": "item", "seed": 1}}}, ""),
        ("int", {"split": {"random": {"fractions": [0.6, 0.2, 0.2]}}}, ""),
        ("int", {"split": {"rows": [20, 20, -1]}}, ""),
        ("int", {"split": {"fractions": [0.6, 0.2, 0.2]}}, ""),
    ],
)
def test_keys_of_the_whole_schema(kind, top, refused, tmp_path):
    without, made = outcome(tmp_path, kind, {}), outcome(tmp_path, kind, {}, **top)
    assert made == refused if refused else made != without


@pytest.mark.parametrize(("key", "value"), [("frequency_limit", 3), ("count", "all")])
def test_limits_are_refused_where_bins_alone_are_categories(key, value, tmp_path):
    schema = schema_of({"role": "numerical", "type": "int", "bins": [1, 2]})
    schema["columns"] = schema["columns"][:1]
    schema |= {"split": {"fractions": [1, 0, 0]}, "defaults": {key: value}}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    with pytest.raises(PreprocError, match=rf"schema.yaml:\d+: defaults.{key}"):
        read.load_schema(tmp_path / "schema.yaml")


@pytest.mark.parametrize(
    "key", ["group", "buckets", "frequency_limit", "max_ids", "vocabulary", "bins"]
)
def test_keys_beside_a_label_that_has_another_role_are_refused(key, tmp_path):
    """As a draft may have it; what a draft never writes was meant for a feature."""
    schema = schema_of({"role": "categorical", "type": "string"})
    of_number, of_text = (
        {"role": "numerical", "type": "int"},
        {"role": "categorical", "type": "string"},
    )
    kind = of_number if key == "bins" else of_text
    schema["columns"].append({"name": "click", **kind, key: OTHER_VALUES[key][0]})
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    with pytest.raises(PreprocError, match=rf"columns.{key}: "):
        read.load_schema(tmp_path / "schema.yaml")


RATINGS_LINES = (
    *(b"user,item,at,stars", b"user;item;at;stars", b"12,34,7,3"),
    *(b"u1,a,7,3", b'"u1",a,7,3', b"12,34,2026-03-02,3.5", b"12,34,2026-03-02T10:00,4"),
    *(b"u1;a;7;3", b"u 1;a;8;4", b'"12";"34";2026-03-02T10:00;4', b'"12","34",2026-03-02T10:00,4'),
    *(b"u 1,a,8,4", b'{"user": "u1", "item": "a", "at": 7, "stars": 3}'),
)
VALUES_OF_RATINGS: dict[tuple[Any, ...], list[Any]] = {
    ("format",): ["csv"],
    ("dialect", "delimiter"): [";"],
    ("dialect", "header"): [False],
    ("dialect", "quote"): ["none"],
    ("dialect", "json"): [True],
    ("columns", 0, "type"): ["integer", "token"],
    ("columns", 2, "format"): ["iso8601"],
    ("columns", 2, "time_zone"): ["+01:00"],
}


def ratings_outcome(folder: Path, given: dict[tuple[Any, ...], Any]) -> object:
    """Returns what a schema of ratings makes of lines, or the key that is refused."""
    columns = [
        {"name": "user", "role": "user", "type": "string"},
        {"name": "item", "role": "item", "type": "string"},
        {"name": "at", "role": "timestamp"},
        {"name": "stars", "role": "rating"},
    ]
    schema: dict[str, Any] = {"dialect": {}, "columns": columns}
    for (*at, key), value in given.items():
        functools.reduce(operator.getitem, at, schema)[key] = value
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(schema, sort_keys=False))
    try:
        (layout,) = load_formats(path)
    except PreprocError as error:
        return str(error).removeprefix(f"{path}:{error.line}: ").partition(":")[0]
    return layout.name, [(layout.is_header(line), layout.read(line)) for line in RATINGS_LINES]


@pytest.mark.parametrize("beside", [(), *VALUES_OF_RATINGS], ids=str)
def test_a_key_of_ratings_changes_what_is_read_or_is_refused(beside, tmp_path):
    base = {beside: VALUES_OF_RATINGS[beside][0]} if beside else {}
    if beside[-1:] == ("time_zone",):
        base["columns", 2, "format"] = "iso8601"
    without = ratings_outcome(tmp_path, base)
    for key, values in VALUES_OF_RATINGS.items():
        for value in values if key not in base else ():
            refused = ".".join(str(part) for part in key if not isinstance(part, int))
            made = ratings_outcome(tmp_path, {**base, key: value})
            others = [".".join(str(p) for p in k if not isinstance(p, int)) for k in base]
            assert made != without or made in (refused, *others), (key, value)
