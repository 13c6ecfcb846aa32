# SPDX-License-Identifier: Apache-2.0
"""A raw format is a YAML file; fields are read as those of a click log."""

import json

import pytest

from recsys.data.manifest import Manifest
from recsys.data.sequences.files import read_item_map
from recsys.data.sequences.titles import read_titles
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
titles:
  file: names.txt
  dialect: {delimiter: ";", quote: none, header: false, encoding: latin-1}
  columns:
  - {name: "more{1..2}", role: ignored}
  - {name: title, role: title}
  - {name: what, role: item, type: string}
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


def test_titles_are_part_of_a_format(tmp_path):
    """Beside the ratings, or named."""
    flags = (*write(tmp_path, "objects"), "--min_user_count=3")
    titles = {item: f'Spiel "{item}" für {number}' for number, item in enumerate(HISTORIES["u0"])}
    text = "".join(f"1;2;{title};{item}\n" for item, title in titles.items())
    (tmp_path / "names.txt").write_text(text, encoding="latin-1")
    (tmp_path / "elsewhere").write_text(text)
    for output, more in (("beside", ()), ("named", (f"--titles={tmp_path / 'elsewhere'}",))):
        called("movielens", *flags, f"--output={tmp_path / output}", *more)
        items = read_item_map(tmp_path / output).raw.to_pylist()
        assert read_titles(tmp_path / output, len(items)) == [titles[item] for item in items]


WRONG = {
    "columns": "columns: [{name: a, role: user, type: string}]",
    "columns.role": "columns: [{name: a, role: label}]",
    "columns.type": "columns: [{name: a, role: user, type: hex}, {name: b, role: item, type: hex}]",
    "columns.missing": "columns: [{name: a, role: user, type: string, missing: [x]}]",
    "dialect.delimiter": "dialect: {delimiter: '-'}",
    "columns.time_zone": "columns: [{name: a, role: user, type: string}, "
    "{name: t, role: timestamp, time_zone: '+01:00'}]",  # without format
    "label": "label: {column: a}",
    "titles.file": "titles: {file: a/b, columns: []}",
    "titles.columns": "titles: {file: a, columns: [{name: a, role: item, type: string}]}",
    "titles.columns.role": "titles: {file: a, columns: [{name: a, role: user, type: string}]}",
    "titles.dialect.encoding": "titles: {file: a, dialect: {encoding: x}, columns: []}",
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_schema_names_the_key(tmp_path, key):
    flags = write(tmp_path, "objects")
    columns = ", ".join(
        f"{{name: {role}, role: {role}, type: string}}" for role in ("user", "item")
    )
    text = f"columns: [{columns}]\n" if key.startswith("titles") else ""
    (tmp_path / "own.yaml").write_text(text + WRONG[key])
    error = called("movielens", *flags, f"--output={tmp_path / 'made'}", status=2)
    assert f"own.yaml:{1 + bool(text)}: {key}: " in error
    assert "--format" not in error  # a key, which is a flag too
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
