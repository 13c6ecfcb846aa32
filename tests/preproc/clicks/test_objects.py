# SPDX-License-Identifier: Apache-2.0
"""Lines of JSON: a schema reads them by the names of its columns, as it reads csv and tables."""

import csv
import gzip
import json
import random
import re
from pathlib import Path

import pytest
import yaml

from preproc.clicks.schema.draft.infer import infer_schema
from preproc.files.errors import TooManyRejectedRowsError
from tests.harness import refusal
from tests.preproc.clicks.schema_log import BAD, LISTS, SCHEMA, prepare, rows, write_log
from tests.preproc.clicks.schema_log import write_schema as schema_of_log
from tests.preproc.ratings.oracle import tree
from tests.tools import needs

ENGINES = [
    pytest.param("native", marks=needs("compiled Criteo kernel")),
    pytest.param("reference"),
]
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
SEPARATORS = {
    column["name"]: column.get("separator", "|")
    for column in SCHEMA["columns"]
    if column["name"] in LISTS
}
TEXTS = {c["name"] for c in SCHEMA["columns"] if c.get("type") in ("string", "hex")}


def object_of(row: dict[str, str], rng: random.Random) -> str:
    """Writes a row with its keys in any order, numbers and lists as such, and keys of no use."""
    pairs = [("unread", {"a": [1, "}"]}), *row.items()]
    rng.shuffle(pairs)
    written = []
    for key, value in pairs:
        if value in ("", []) and rng.random() < 0.5:
            continue
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        if key in SEPARATORS and value and rng.random() < 0.5:
            text = json.dumps(value.split(SEPARATORS[key]))
        elif value == "":
            text = rng.choice(["null", '""', "NaN"])
        elif key not in TEXTS and isinstance(value, str) and NUMBER.fullmatch(value):
            text = rng.choice([value, text])
        written.append(f"{json.dumps(key)}:{rng.choice(['', ' '])}{text}")
    return "{" + ", ".join(written) + "}\n"


def write_objects(path: Path, table: list[dict[str, str]]) -> Path:
    rng = random.Random(5)
    path.write_bytes("".join(object_of(row, rng) for row in table).encode())
    return path


def dataset(folder: Path) -> dict[str, bytes]:
    """Returns all files but the manifest, which names the source."""
    return {name: data for name, data in tree(folder).items() if name != "manifest.json"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "split", [SCHEMA["split"], {"random": {"fractions": [0.6, 0.2, 0.2], "by": "user"}}]
)
def test_objects_make_the_dataset_of_csv(tmp_path, engine, split):
    table = write_log(tmp_path, 1500, seed=4)
    schema = schema_of_log(tmp_path, split=split)
    log = write_objects(tmp_path / "log.json", table)
    packed = tmp_path / "log.json.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    wanted = prepare(tmp_path / "log.csv", schema, tmp_path / "wanted", engine=engine)
    for source in (log, packed):
        made = prepare(source, schema, tmp_path / source.name[4:], engine=engine)
        assert (made.rows, made.positives, made.fingerprint) == (
            *(wanted.rows, wanted.positives, wanted.fingerprint),
        )
        assert dataset(tmp_path / source.name[4:]) == dataset(tmp_path / "wanted")


LINES = {
    '{"price": 1': "json",
    "[]": "json",
    '{"price": [1]}': "json",
    '{"bought": "no", "bought": "no"}': "json",
    '{"tags": ["a b", "c"]}': "json",
    "{}": "label",
}


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_objects_are_kept_with_reason_line_and_bytes(tmp_path, engine):
    good = rows(200, seed=3)
    texts = {key: value for key, value in BAD.items() if key not in ("C3", "brand", "shop")}
    bad = [
        (object_of(good[0] | {key: value}, random.Random(1)), reason)
        for key, values in texts.items()
        for value, reason in values.items()
        if value.isascii()
    ]
    bad += [(line + "\n", reason) for line, reason in LINES.items()]
    lines = [object_of(row, random.Random(2)) for row in good]
    lines += [line for pair in bad for line in (pair[0], lines[7])]
    log = tmp_path / "log.json"
    log.write_text("".join(lines))
    schema = schema_of_log(tmp_path)
    with refusal("max_bad_fraction", "log.json", "line 201", kind=TooManyRejectedRowsError):
        prepare(log, schema, tmp_path / "made", engine=engine, max_bad_fraction=0)
    prepare(log, schema, tmp_path / "made", engine=engine, max_bad_fraction=1)
    with (tmp_path / "made/quarantine.csv").open(newline="") as file:
        kept = [*csv.DictReader(file)]
    assert [(int(r["line_number"]), r["reason"]) for r in kept] == [
        (201 + 2 * n, reason) for n, (_, reason) in enumerate(bad)
    ]
    text = log.read_bytes()
    for row in kept:
        at = int(row["byte_offset"])
        line = text[at:].partition(b"\n")[0]
        assert row["row"].encode().decode("unicode_escape").encode("latin-1") == line


def test_keys_that_are_nowhere_are_told(tmp_path):
    """A name that the schema misspells would else be a column without values."""
    table = rows(50, seed=1)
    log = write_objects(tmp_path / "log.json", [{**row, "brant": "x"} for row in table])
    columns = [c | {"name": "brnad"} if c["name"] == "brand" else c for c in SCHEMA["columns"]]
    with refusal("'brnad'", path=log):
        prepare(log, schema_of_log(tmp_path, columns=columns), tmp_path / "made")
    log.write_text("{\n" + json.dumps(table[0])[1:])
    with refusal(str(log), "line 1", path=log, line=1):
        prepare(log, schema_of_log(tmp_path), tmp_path / "made")


def test_a_draft_of_objects_is_that_of_csv(tmp_path):
    rng = random.Random(3)
    names = ["click", "age", "price", "code", "city", "tags"]
    table = [
        [
            *(int(rng.random() < 0.2), rng.randrange(18, 90), rng.random() * 9),
            *(f"{rng.randrange(99)}", rng.choice(["Köln", "Rom", ""])),
            sorted({f"t{rng.randrange(20)}" for _ in range(rng.randrange(1, 5))}),
        ]
        for _ in range(2000)
    ]
    objects = (dict(zip(names, row, strict=True)) | {"deep": {"a": 1}} for row in table)
    (tmp_path / "log.json").write_text("".join(json.dumps(each) + "\n" for each in objects))
    lines = [",".join([*map(str, row[:-1]), "|".join(row[-1])]) for row in table]
    (tmp_path / "log.csv").write_text("\n".join([",".join(names), *lines]))
    drafts = [yaml.safe_load(infer_schema(tmp_path / f"log.{end}")) for end in ("json", "csv")]
    deep = drafts[0]["columns"].pop()
    assert deep == {"name": "deep", "role": "ignored"}
    assert drafts[0]["columns"] == drafts[1]["columns"]
    assert drafts[0]["label"] == drafts[1]["label"]
    schema = tmp_path / "schema.yaml"
    schema.write_text(infer_schema(tmp_path / "log.json"))
    assert sum(prepare(tmp_path / "log.json", schema, tmp_path / "made").rows.values()) == 2000
