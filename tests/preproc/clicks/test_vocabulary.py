# SPDX-License-Identifier: Apache-2.0
"""Columns of one vocabulary: an item has one id, alone and in lists."""

import random
from collections import Counter
from pathlib import Path

import pytest
import yaml

from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from preproc.clicks.dictionaries import Keys
from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.schema.read import load_schema
from preproc.files.errors import PreprocError
from tests.harness import refusal
from tests.preproc.clicks.rows import assert_same, run
from tests.preproc.clicks.schema_log import columns_of, prepare
from tests.tools import needs

GOODS = {"vocabulary": "goods"}
SCHEMA = {
    "label": {"column": "click"},
    "columns": [
        {"name": "item", "role": "categorical", "type": "string", "max_ids": 60, **GOODS},
        {"name": "shop", "role": "categorical", "type": "int", "frequency_limit": 1},
        {"name": "seen", "role": "categorical_list", "weight_separator": ":", **GOODS},
        {"name": "last", "role": "categorical", "frequency_limit": 3, **GOODS},
    ],
    "split": {"rows": [500, 50, -1]},
}
"""A rule that one column gives is that of its vocabulary: `type`, `max_ids`, `frequency_limit`."""


@pytest.fixture
def log(tmp_path):
    """Writes a log and its schema; returns the rows."""
    rng = random.Random(5)

    def item():
        return f"B{min(int(rng.expovariate(0.02)), 400)}"

    rows = [
        (item(), str(rng.randrange(9)), [item() for _ in range(rng.randrange(6))], item())
        for _ in range(600)
    ]
    lines = ["click,item,shop,seen,last"]
    for one, shop, seen, last in rows:
        weighted = "|".join(f"{each}:{rng.random():.2f}" for each in seen)
        lines.append(f"{rng.randrange(2)},{one},{shop},{weighted},{last}")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    return rows


def test_an_item_has_one_id_alone_and_in_lists(log, tmp_path):
    output = tmp_path / "made"
    prepare(tmp_path / "log.csv", tmp_path / "schema.yaml", output, engine="reference")
    counts = Counter()
    for one, _, seen, last in log[:500]:
        counts.update([one, *seen, last])
    kept = [text for text, n in counts.items() if n >= 3]
    kept.sort(key=lambda text: (-counts[text], len(text), text))
    ids = {text: number for number, text in enumerate(kept[:60], 1)}
    assert len(kept) > 60
    item, shop, last, seen = dictionaries_of_dataset(output).load()
    assert [text.decode() for text in item] == kept[:60] == [text.decode() for text in last]
    assert list(seen) == list(item)
    assert isinstance(shop, Keys)
    assert len(shop) == 9
    spec, reader = columns_of(output, "train")
    assert spec.table_sizes == (61, 10, 61, 61)
    rows = reader.read(0, 500)
    assert rows.categorical[0].tolist() == [ids.get(row[0], 0) for row in log[:500]]
    assert rows.categorical[2].tolist() == [ids.get(row[3], 0) for row in log[:500]]
    assert rows.lists[0].ids.tolist() == [ids.get(e, 0) for row in log[:500] for e in row[2]]


@needs("compiled Criteo kernel")
def test_engines_and_a_tail_agree(log, tmp_path):
    source, schema = tmp_path / "log.csv", tmp_path / "schema.yaml"
    expected = prepare(source, schema, tmp_path / "reference", engine="reference")
    small = NativeSettings(unit_bytes=2000, table_bytes=4096)
    for name, settings in (("whole", None), ("units", small)):
        assert_same(prepare(source, schema, tmp_path / name, settings=settings), expected)
    tail = tmp_path / "tail.csv"
    lines = source.read_text().splitlines(keepends=True)
    tail.write_text("".join([lines[0], *lines[-50:]]))
    run(
        tail, tmp_path / "applied", dictionaries=tmp_path / "whole",
        semantics=semantics_of_dataset(tmp_path / "whole", {}),
    )  # fmt: skip
    for file in ("cat_0.bin", "cat_2.bin", "cat_3.bin", "cat_3.offsets.bin"):
        whole, applied = (tmp_path / name / "test" / file for name in ("whole", "applied"))
        assert applied.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"type": "int"}, ["columns.type", "'int'", "'string'", "'goods'"]),
        ({"max_ids": 61}, ["columns.max_ids", 61, 60, "'goods'"]),
        ({"vocabulary": "good", "type": "hex"}, ["columns", "last", "'good'"]),
        ({"vocabulary": 3}, ["columns.vocabulary", 3]),
    ],
)
def test_rules_that_differ_are_refused(tmp_path, change, facts):
    *others, last = SCHEMA["columns"]
    path: Path = tmp_path / "schema.yaml"
    path.write_text(yaml.safe_dump(SCHEMA | {"columns": [*others, last | change]}))
    with refusal(*facts, kind=PreprocError, path=path):
        load_schema(path)
