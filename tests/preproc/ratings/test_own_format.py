# SPDX-License-Identifier: Apache-2.0
"""A raw format is a YAML file; fields are read as those of a click log."""

import json

import pytest

from recsys.data.manifest import Manifest
from tests.preproc.programs import called
from tests.preproc.ratings.oracle import decode

ROWS = [(f"u{user}", f'a"b{item}', 9 - item) for user in range(4) for item in range(5)]
HISTORIES = {f"u{user}": [f'a"b{item}' for item in range(4, -1, -1)] for user in range(4)}
FORMATS = {
    "two colons": (
        """
dialect: {delimiter: "::", quote: none, header: false}
columns:
- {name: id, role: ignored}
- {name: user, role: user, type: string}
- {name: item, role: item, type: string}
- {name: time, role: timestamp}
""",
        lambda user, item, time: f"7::{user}::{item}::{time}",
    ),
    "times of a form": (
        """
format: shop
dialect: {delimiter: ";"}
columns:
- {name: item, role: item, type: auto}
- {name: when, role: timestamp, format: "%d/%m/%Y"}
- {name: user, role: user, type: auto}
""",
        lambda user, item, time: f"{item};0{time}/01/2024;{user}",
    ),
    "objects": (
        """
columns:
- {name: who, role: user, type: string}
- {name: what, role: item, type: string}
- {name: at, role: timestamp}
""",
        lambda user, item, time: json.dumps({"who": user, "what": item, "at": time}),
    ),
}


def write(folder, name, rows=ROWS):
    """Writes a schema and rows; returns their flags."""
    schema, write_row = FORMATS[name]
    header = ["item;when;user"] if name == "times of a form" else []
    (folder / "own.yaml").write_text(schema)
    (folder / "log").write_text("\n".join([*header, *(write_row(*row) for row in rows)]))
    return (f"--format={folder / 'own.yaml'}", f"--input={folder / 'log'}", "--min_item_count=0")


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_one_file(tmp_path, name):
    flags = write(tmp_path, name)
    called("movielens", *flags, f"--output={tmp_path / 'made'}", "--min_user_count=3")
    assert decode(tmp_path / "made")[0] == HISTORIES
    wanted = "shop" if name == "times of a form" else "own"
    assert Manifest.load(tmp_path / "made").semantics["format"] == wanted


WRONG = {
    "columns": "columns: [{name: a, role: user, type: string}]",
    "columns.role": "columns: [{name: a, role: label}]",
    "columns.type": "columns: [{name: a, role: user, type: hex}, {name: b, role: item, type: hex}]",
    "columns.missing": "columns: [{name: a, role: user, type: string, missing: [x]}]",
    "dialect.delimiter": "dialect: {delimiter: '-'}",
    "label": "label: {column: a}",
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_schema_names_the_key(tmp_path, key):
    flags = write(tmp_path, "objects")
    (tmp_path / "own.yaml").write_text(WRONG[key])
    error = called("movielens", *flags, f"--output={tmp_path / 'made'}", status=2)
    assert f"own.yaml:1: {key}: " in error
    assert not (tmp_path / "made").exists()


def test_quotes_are_those_of_click_logs(tmp_path):
    rows = [f"u{user},{item},3,{time}" for user in range(4) for time, item in enumerate(QUOTED)]
    (tmp_path / "log").write_text("\n".join(["user_id,asin,rating,timestamp", *rows]))
    words = (f"--input={tmp_path / 'log'}", f"--output={tmp_path / 'made'}")
    called("amazon", *words, "--min_item_count=0")
    assert decode(tmp_path / "made")[0]["u0"] == [*QUOTED.values()]


QUOTED = {'a"b': 'a"b', '"a,b"': "a,b", '"say ""x"""': 'say "x"', " c": " c", '" c"': " c"}


def test_rows_are_read_without_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("preproc.ratings.parse.is_built", lambda: False)
    test_quotes_are_those_of_click_logs(tmp_path)
