# SPDX-License-Identifier: Apache-2.0
"""Lists in the rows of a click log: every engine makes the same bytes, and what they mean."""

import gzip
import random
from pathlib import Path

import numpy as np
import pytest
import yaml

from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.job import semantics_of_schema
from preproc.files.errors import PreprocError
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import Manifest
from recsys.data.split_binary import SplitBinaryReader
from tests.preproc.clicks.rows import assert_same, run
from tests.preproc.clicks.test_engines import ENGINES
from tests.tools import needs

SCHEMA = {
    "dialect": {"delimiter": ","},
    "missing": ["n/a"],
    "label": {"column": "click"},
    "defaults": {"frequency_limit": 2},
    "columns": [
        {
            **{"name": "tags", "role": "categorical_list", "type": "string", "separator": " "},
            **{"pooling": "sum", "max_length": 4},
        },
        {"name": "user", "role": "categorical", "type": "int"},
        {
            **{"name": "seen", "role": "categorical_list", "type": "int", "weight_separator": ":"},
            **{"frequency_limit": 1, "keep": "first", "max_length": 5},
        },
        {
            **{"name": "codes", "role": "categorical_list", "type": "hex", "separator": "/"},
            **{"max_ids": 20},
        },
        {"name": "words", "role": "categorical_list", "type": "string", "buckets": 9},
        {"name": "price", "role": "numerical", "type": "float"},
    ],
    "split": {"fractions": [0.7, 0.1, 0.2]},
}
NAMES = ["user", "tags", "click", "price", "words", "seen", "codes"]
BAD = {
    "tags": ["a  b", " a", "a ", "x" * 1025, "a \x85"],
    "seen": [
        "7",
        "7:",
        ":1",
        "7:1|",
        "7:nan",
        "7:1e39",
        "x:1",
        "7:1|99999999999999999999:1",
        "7:é",
    ],
    "codes": ["a//b", "abcdefabc", "g/1", "é"],
}
REASONS = {"list": 3 + 6 + 1, "string": 1, "encoding": 1 + 1 + 1, "integer": 2, "hex": 2}


def write_schema(folder: Path, **changes: object) -> Path:
    path = folder / "schema.yaml"
    path.write_text(yaml.safe_dump(SCHEMA | changes))
    return path


def rows(count: int, seed: int) -> list[dict[str, str]]:
    rng = random.Random(seed)

    def many(draw, separator: str, most: int = 8) -> str:
        return separator.join(draw() for _ in range(rng.randrange(most)))

    return [
        {
            "user": str(int(rng.paretovariate(0.7)) % 60),
            "tags": rng.choice(
                [
                    "n/a",
                    many(
                        lambda: rng.choice(
                            ["b", "größe", "long tag" * 9, f"t{rng.randrange(90)}"]
                        ).replace(" ", "-"),
                        " ",
                    ),
                ]
            ),
            "click": str(rng.randrange(2)),
            "price": f"{rng.random():.2f}",
            "words": many(lambda: f"w{rng.randrange(99)}", "|", 70),
            "seen": many(
                lambda: (
                    f"{rng.choice(['007', '7', '7.0', str(rng.randrange(-50, 50))])}:{rng.choice(['1', '.5', '-2e-3', f'{rng.random()!r}'])}"
                ),
                "|",
            ),
            "codes": many(lambda: f"{int(rng.paretovariate(0.6)) % 999:x}", "/", 30),
        }
        for _ in range(count)
    ]


def text_of(table: list[dict[str, str]], names: list[str] = NAMES, end: str = "\n") -> bytes:
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in table)]
    return (end.join(lines) + end).encode()


def prepare(source: Path, schema: Path, output: Path, **fields: object) -> Manifest:
    overrides = {"shuffle_seed": fields.pop("shuffle_seed", None)}
    semantics = semantics_of_schema(schema, overrides)
    return run(source, output, semantics=semantics, schema=schema, **fields)


@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=m) for e, m in ENGINES.items() if e != "nvtabular"]
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"split": {"random": {"fractions": [0.6, 0.1, 0.3], "by": "user"}}},
        {"defaults": {"count": "all"}},
    ],
    ids=["fractions", "random", "count all"],
)
def test_every_engine_makes_the_same_bytes(engine, changes, tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    bad = [(column, value) for column, values in BAD.items() for value in values]
    for i, end in enumerate(["\n", "\r\n", "\n"]):
        table = rows(500, seed=i)
        for number, (column, value) in enumerate(bad):
            table[7 * number + i][column] = value
        text = text_of(table, random.Random(i).sample(NAMES, len(NAMES)), end)
        (folder / f"{i}.csv").write_bytes(gzip.compress(text) if i == 1 else text)
    schema = write_schema(tmp_path, **changes)
    shuffle_seed = None if "split" in changes else 3
    fields = {"shuffle_seed": shuffle_seed}
    expected = prepare(folder, schema, tmp_path / "reference", engine="reference", **fields)
    assert {n: c for n, c in expected.rejected.items() if c} == {
        n: 3 * c for n, c in REASONS.items()
    }
    small = NativeSettings(unit_bytes=3000, table_bytes=1) if engine == "native" else None
    made = prepare(folder, schema, tmp_path / "made", engine=engine, settings=small, **fields)
    assert_same(made, expected)


@pytest.mark.parametrize(
    "engine", ["reference", pytest.param("native", marks=needs("compiled Criteo kernel"))]
)
@pytest.mark.parametrize("shuffle_seed", [None, 5])
def test_lists_hold_the_ids_of_their_elements(engine, shuffle_seed, tmp_path):
    table = rows(400, seed=9)
    (tmp_path / "log.csv").write_bytes(text_of(table))
    schema = write_schema(tmp_path, split={"fractions": [1, 0, 0]})
    prepare(
        *(tmp_path / "log.csv", schema, tmp_path / "made"), engine=engine, shuffle_seed=shuffle_seed
    )
    spec = FeatureSpec.load(tmp_path / "made")
    assert [f.name for f in spec.categorical] == ["user"]
    assert [(f.name, f.pooling, f.is_weighted) for f in spec.lists] == [
        *(("tags", "sum", False), ("seen", "mean", True)),
        *(("codes", "mean", False), ("words", "mean", False)),
    ]
    reader = SplitBinaryReader(tmp_path / "made", "train", spec, check_ids=True)
    columns = reader.read(0, len(table))
    if shuffle_seed is not None:  # the numbers tell the rows
        prices = [float(row["price"]) for row in table]
        logs = np.log(np.array(prices) + 1).astype(np.float32)
        assert sorted(columns.numerical[:, 0].tolist()) == sorted(logs.tolist())
        return
    tags, seen, codes, words = columns.lists
    counts: dict[str, int] = {}
    texts = [row["tags"].split(" ")[-4:] if row["tags"] not in ("", "n/a") else [] for row in table]
    for text in (text for of_row in texts for text in of_row):
        counts[text] = counts.get(text, 0) + 1
    kept = sorted(
        (t for t in counts if counts[t] > 1), key=lambda t: (-counts[t], len(t.encode()), t)
    )
    ids = [[kept.index(t) + 1 if t in kept else 0 for t in of_row] for of_row in texts]
    assert [tags[i : i + 1].ids.tolist() for i in range(len(table))] == ids
    pairs = [[e.split(":") for e in row["seen"].split("|")[:5] if e] for row in table]
    np.testing.assert_array_equal(seen.weights, np.float32([float(w) for p in pairs for _, w in p]))
    of_number: dict[int, set[int]] = {}
    for number, id_ in zip([float(n) for p in pairs for n, _ in p], seen.ids, strict=True):
        of_number.setdefault(int(number), set()).add(int(id_))
    assert all(len(found) == 1 for found in of_number.values())
    assert len(set().union(*of_number.values())) == len(of_number)
    assert spec.lists[2].cardinality == 21
    assert codes.ids.max() == 20
    assert np.diff(words.offsets).max() == 50
    assert words.ids.max() <= 9
    part = reader.read(100, 120)
    for own, whole in zip(part.lists, columns.lists, strict=True):
        np.testing.assert_array_equal(own.ids, whole[100:120].ids)
        np.testing.assert_array_equal(own.offsets, whole[100:120].offsets)


def test_damaged_files_of_lists_are_refused(tmp_path):
    (tmp_path / "log.csv").write_bytes(text_of(rows(90, seed=1)))
    prepare(*(tmp_path / "log.csv", write_schema(tmp_path), tmp_path / "made"), engine="reference")
    folder = tmp_path / "made" / "train"
    for name, change, message in [
        ("cat_1.offsets.bin", lambda b: b[:-8], "has 504 bytes, not 63 . 1 times 8"),
        ("cat_1.bin", lambda b: b + b"1", "cat_1.offsets.bin says"),
        ("cat_2.weights.bin", lambda b: b[:-4], "cat_2.offsets.bin says"),
        ("cat_1.bin", lambda b: b"\x7f" + b[1:], "feature tags, element 0: id 127 is outside"),
        ("cat_1.offsets.bin", lambda b: b[:8] + b"\xff" * 7 + b"\x00" + b[16:], "offsets fall"),
    ]:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(change(whole))
        with pytest.raises(DatasetError, match=message):
            SplitBinaryReader(tmp_path / "made", "train", check_ids=True).read(0, 63)
        (folder / name).write_bytes(whole)


BAD_ENTRIES = {
    "{name: a, role: categorical_list, type: float}": "columns.type: a categorical_list column is",
    "{name: a, role: categorical_list, type: int, separator: ','}": "columns.separator: expected one",
    "{name: a, role: categorical_list, type: int, weight_separator: '|'}": (
        "columns.weight_separator: expected one"
    ),
    "{name: a, role: categorical_list, type: int, max_length: 0}": "columns.max_length: must lie in",
    "{name: a, role: categorical_list, type: int, pooling: max}": "columns.pooling: must be one of",
}


@pytest.mark.parametrize("entry", BAD_ENTRIES)
def test_a_wrong_schema_is_refused_with_its_line(entry, tmp_path):
    path = tmp_path / "schema.yaml"
    path.write_text(f"label: {{column: click}}\ncolumns:\n- {entry}\nsplit: {{rows: [1, 1, -1]}}\n")
    with pytest.raises(PreprocError, match=f"schema.yaml:3: {BAD_ENTRIES[entry]}"):
        semantics_of_schema(path, {})
