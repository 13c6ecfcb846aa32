# SPDX-License-Identifier: Apache-2.0
"""A log with a schema: columns of every role and type, good rows, and values that are refused."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash
import yaml

from preproc.clicks.job import semantics_of_schema
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.line_transform import Features, LineTransform
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest
from recsys.data.split_binary import SplitBinaryReader
from tests.preproc.clicks.rows import run

SCHEMA = {
    "dialect": {"delimiter": ";", "header": True},
    "missing": ["n/a"],
    "label": {"column": "bought", "positive": ["yes", "später"], "negative": ["no"]},
    "defaults": {"frequency_limit": 2},
    "columns": [
        {
            **{"name": "tags", "role": "categorical_list", "type": "string", "separator": " "},
            **{"pooling": "sum", "max_length": 4},
        },
        {"name": ["price", "seen"], "role": "numerical", "type": "int"},
        {
            **{"name": "rate", "role": "numerical", "type": "float", "transform": "standardise"},
            **{"mean": -0.3, "deviation": 0.7},
        },
        {"name": "weight", "role": "numerical", "type": "float", "min": 0.5, "offset": -0.25},
        {
            **{"name": "gain", "role": "numerical", "type": "float", "transform": "signed_log"},
            **{"mean": 0.1, "deviation": 1e-3},
        },
        {"name": "item", "role": "categorical", "type": "hex", "frequency_limit": 3},
        {"name": "C{1..2}", "role": "categorical", "type": "hex"},
        {"name": "C3", "role": "categorical", "type": "hex", "missing": ["-1", "größe", "0"]},
        {"name": "note", "role": "ignored"},
        {"name": "shop", "role": "categorical", "type": "string", "buckets": 50},
        {"name": "sku", "role": "categorical", "type": "int", "buckets": 2**32},
        {"name": "C4", "role": "categorical", "type": "hex", "buckets": 7},
        {"name": "brand", "role": "categorical", "type": "string", "frequency_limit": 1},
        {
            **{"name": "viewed", "role": "categorical_list", "type": "int"},
            **{"weight_separator": ":", "frequency_limit": 1, "keep": "first", "max_length": 5},
        },
        {
            **{"name": "user", "role": "categorical", "type": "int", "max_ids": 9},
            **{"missing": ["-1"], "group": True},
        },
        {
            **{"name": "codes", "role": "categorical_list", "type": "hex", "separator": "/"},
            **{"max_ids": 20},
        },
        {"name": "words", "role": "categorical_list", "type": "string", "buckets": 9},
        {
            **{"name": "when", "role": "timestamp", "format": "%d.%m.%Y %H:%M"},
            **{"time_zone": "+01:00", "features": ["weekend", "hour"]},
        },
    ],
    "split": {"fractions": [0.8, 0.1, 0.1]},
}
LINE = ["tags", "price", "seen", "rate", "weight", "gain", "item", "C1", "C2", "C3"]
LINE += ["note", "shop", "sku", "C4", "brand", "viewed", "user", "codes", "words", "when"]
"""Columns of the schema in its order, without the label."""
NAMES = ["bought", *LINE]
LISTS = ("tags", "viewed", "codes", "words")
SINGLE = ["item", "C1", "C2", "C3", "shop", "sku", "C4", "brand", "user", "when_hour"]
SINGLE += ["when_weekend"]
"""Categorical features but lists, in the order of their ids."""

BAD = {
    "bought": {"perhaps": "label"},
    "price": {"2147483648": "integer"},
    "seen": {"1.0": "integer"},
    "rate": {"3.4028235677973366e38": "number", "0" * 65: "number"},
    "weight": {"nan": "number"},
    "item": {"xyz": "hex"},
    "C1": {"123456789": "hex"},
    "C3": {"é": "encoding"},
    "shop": {"tab\udc85": "encoding", "a" * 1025: "string"},
    "sku": {"9223372036854775808": "integer", "7.": "integer"},
    "brand": {"\udcff": "encoding", "é" * 513: "string"},
    "user": {"9223372036854775808": "integer"},
    "when": {
        **{"29.02.2026 10:00": "time", "28.02.1969 10:00": "time", "28.02.2026 1é:00": "encoding"}
    },
    "tags": {
        **{"a  b": "list", " a": "list", "a ": "list", "x" * 1025: "string"},
        "a \udc85": "encoding",
    },
    "viewed": {
        **{"7": "list", "7:": "list", ":1": "list", "7:1|": "list", "7:nan": "list"},
        **{"7:1e39": "list", "x:1": "integer", "7:1|99999999999999999999:1": "integer"},
        "7:é": "encoding",
    },
    "codes": {"a//b": "list", "abcdefabc": "hex", "g/1": "hex", "é": "encoding"},
}
"""Values that are refused, and the reasons; bytes that are no UTF-8 as Python escapes them."""
BAD_LINES = {"1;2;3": "columns"} | dict.fromkeys(['1;"2;3', '"1"2;3', '1;"', '1;""";2'], "quote")

REASONS = Counter(reason for values in (*BAD.values(), BAD_LINES) for reason in values.values())


def columns_without(*kinds: str) -> list[dict[str, object]]:
    """Returns the columns of the schema, those of some types or roles ignored."""
    return [
        {"name": column["name"], "role": "ignored", "group": column.get("group", False)}
        if {column["role"], column.get("type")} & {*kinds}
        else column
        for column in SCHEMA["columns"]
    ]


def with_quantiles(columns: list[dict[str, object]], bins: int) -> list[dict[str, object]]:
    """Returns columns whose numbers have bins by quantiles."""
    return [
        column | {"bins": f"quantiles:{bins}"} if column["role"] == "numerical" else column
        for column in columns
    ]


def write_schema(folder: Path, **changes: object) -> Path:
    """Writes the schema with other values of some keys."""
    path = folder / "schema.yaml"
    path.write_text(yaml.safe_dump(SCHEMA | changes))
    return path


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Returns good rows, numbers in many spellings."""
    rng = random.Random(seed)

    def many(draw: Callable[[], str], separator: str, most: int = 8) -> str:
        return separator.join(draw() for _ in range(rng.randrange(most)))

    def tag() -> str:
        return rng.choice(["b", "größe", "long-tag" * 9, f"t{rng.randrange(90)}"])

    def viewed() -> str:
        number = rng.choice(["007", "7", "7.0", str(rng.randrange(-50, 50))])
        return f"{number}:{rng.choice(['1', '.5', '-2e-3', f'{rng.random()!r}'])}"

    def brand() -> str:
        quotes, text = '"' * rng.randrange(1, 40), "x" * rng.randrange(1, 1025)
        return rng.choice(["", "Ä", 'a;"b"', quotes, "b", text, "a " * 99])

    return [
        {
            "bought": rng.choice(["no", "no", "yes", "später"]),
            "tags": rng.choice(["n/a", many(tag, " ")]),
            "price": rng.choice(["", "n/a", "-3", str(rng.randrange(10**6)), str(2**31 - 1)]),
            "seen": rng.choice(["", "0", "0007"]),
            "rate": rng.choice(["", "-0", "1e-999", ".5", "-5.", f"{rng.gauss(0, 1e3)!r}"]),
            "weight": rng.choice(["", "n/a", "3.4e38", f"{rng.random() * 10:.3f}", "1e22", "2E+3"]),
            "gain": rng.choice(["", "0.1", "-3.4e38", "1e-30", f"{rng.gauss(0, 1)!r}"]),
            "item": f"{int(rng.paretovariate(0.8)) % 400:x}",
            "C1": rng.choice(["", "FFFFFFFF", "ffffffff", "0a", "A"]),
            "C2": f"{rng.randrange(2**32):08X}",
            "C3": rng.choice(["1", "", "-1", "0"]),
            "note": rng.choice(["", "größer als 3", "\x01"]),
            "shop": rng.choice(["", "Mitte", "Süd 2", "x" * rng.randrange(1, 99)]),
            "sku": rng.choice(["", "7", "007", "7.0", "-0", str(-(2**63)), "9223372036854775807"]),
            "C4": f"{rng.randrange(2**32):x}",
            "brand": brand(),
            "viewed": many(viewed, "|"),
            "user": rng.choice(["-1", "-2", "7.0", "007", str(rng.randrange(-(2**63), 2**63))]),
            "codes": many(lambda: f"{int(rng.paretovariate(0.6)) % 999:x}", "/", 30),
            "words": many(lambda: f"w{rng.randrange(99)}", "|", 70),
            "when": rng.choice(
                ["", "n/a", f"{rng.randrange(1, 29):02}.02.2026 23:{rng.choice('05')}9"]
            ),
        }
        for _ in range(count)
    ]


def must_be_quoted(field: str) -> bool:
    return '"' in field or ";" in field


def may_be_quoted(field: str) -> bool:
    return (
        must_be_quoted(field)
        or xxhash.xxh64_intdigest(field.encode(errors="surrogateescape")) % 5 == 0
    )


def text_of(
    table: list[dict[str, str]],
    names: list[str] = NAMES,
    end: str = "\n",
    is_quoted: Callable[[str], bool] = must_be_quoted,
    delimiter: str = ";",
) -> bytes:
    """Returns a header and rows, their columns in this order."""

    def spelled(field: str) -> str:
        return '"{}"'.format(field.replace('"', '""')) if is_quoted(field) else field

    cells = [names, *([row[name] for name in names] for row in table)]
    return (end.join(delimiter.join(map(spelled, row)) for row in cells) + end).encode(
        errors="surrogateescape"
    )


def write_log(folder: Path, count: int, seed: int) -> list[dict[str, str]]:
    """Writes good rows to log.csv; returns them."""
    table = rows(count, seed)
    (folder / "log.csv").write_bytes(text_of(table))
    return table


def prepare(
    source: Path,
    schema: Path,
    output: Path,
    overrides: dict[str, object] | None = None,
    **fields: object,
) -> Manifest:
    """Prepares a dataset by a schema, in input order unless `overrides` shuffle it."""
    semantics = semantics_of_schema(schema, {"shuffle_seed": None} | (overrides or {}))
    return run(source, output, schema=schema, semantics=semantics, **fields)


def assert_served(folder: Path, lines: list[str]) -> tuple[Features, ClickColumns]:
    """Compares lines, transformed as a server does, with the test split of a dataset.

    Returns both.
    """
    _, reader = columns_of(folder / "made", "test")
    write_feature_file(folder / "made", folder / "features.bin", "float32")
    rows_of_test = [line.partition(";")[2].encode() for line in lines[-reader.num_rows :]]
    with LineTransform(folder / "features.bin") as transform:
        served = transform.transform(rows_of_test)
    offline = reader.read(0, reader.num_rows)
    assert np.array_equal(served.ids, np.stack(offline.categorical, 1))
    assert np.array_equal(served.numerical, offline.numerical)
    return served, offline


def columns_of(dataset: Path, split: str) -> tuple[FeatureSpec, SplitBinaryReader]:
    """Opens a split."""
    spec = FeatureSpec.load(dataset)
    return spec, SplitBinaryReader(dataset, split, spec, check_ids=True)
