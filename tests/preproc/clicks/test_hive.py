# SPDX-License-Identifier: Apache-2.0
r"""Hive's default text: 0x01 between fields, 0x02 in lists, 0x03 in maps, \N for nothing."""

import random

import pytest
import yaml

from recsys.data.manifest import Manifest
from tests.preproc.programs import called
from tests.tools import needs

COLUMNS = [
    {"name": "price", "role": "numerical", "type": "float"},
    {"name": "site", "role": "categorical", "type": "string"},
    {"name": "seen", "role": "categorical_list", "type": "string"},
]


def table(delimiter: str, separator: str, weight: str, missing: str) -> str:
    """Returns rows whose texts have quotes and blanks, as no field is quoted."""
    draw, lines = random.Random(5), []
    for number in range(300):
        elements = [
            f"{draw.choice('uvwxyz')}{weight}{draw.randrange(9)}" for _ in range(number % 4)
        ]
        fields = [
            str(int(draw.random() < 0.3)),
            missing if draw.random() < 0.2 else f"{draw.random():.3f}",
            missing if draw.random() < 0.2 else draw.choice(['"a', 'b"b', "c d", "é"]),
            separator.join(elements) or missing,
        ]
        lines.append(delimiter.join(fields) + "\n")
    return "".join(lines)


def fingerprint(folder, text: str, schema: dict, *flags: str) -> str:
    (folder / "log").mkdir(parents=True)
    lines = text.splitlines(keepends=True)
    for part, name in enumerate(("000000_0", "000001_0", "000010_0")):
        (folder / "log" / name).write_text("".join(lines[100 * part :][:100]))
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema))
    called(
        "clicks",
        *(f"--input={folder / 'log'}", f"--schema={folder / 'schema.yaml'}"),
        *(f"--output={folder / 'made'}", *flags),
    )
    return Manifest.load(folder / "made").fingerprint


def schema(delimiter: str, separator: str, weight: str, missing: str) -> dict[str, object]:
    of_list = {"separator": separator, "weight_separator": weight}
    return {
        "dialect": {"delimiter": delimiter, "header": False, "quote": "none"},
        "missing": [missing],
        "label": {"column": "click"},
        "columns": [{"name": "click", "role": "label"}, *COLUMNS[:2], COLUMNS[2] | of_list],
        "split": {"fractions": [0.8, 0.1, 0.1]},
    }


@pytest.mark.parametrize(
    "engine",
    ["--engine=reference", pytest.param("--engine=native", marks=needs("compiled Criteo kernel"))],
)
def test_fields_lists_and_maps_of_hive(tmp_path, engine):
    forms = ("\x01", "\x02", "\x03", "\\N"), ("\t", "|", ":", "-")
    hive, other = (
        fingerprint(tmp_path / str(i), table(*form), schema(*form), engine)
        for i, form in enumerate(forms)
    )
    assert hive == other


@needs("compiled Criteo kernel")
def test_infer_drafts_a_schema_of_hive(tmp_path):
    log, draft = tmp_path / "000000_0", tmp_path / "draft.yaml"
    log.write_text(table("\x01", "\x02", "", "\\N"))
    called("clicks", "--input", log, "--infer", draft)
    drafted = yaml.safe_load(draft.read_text())
    assert drafted["dialect"] == {"delimiter": "\x01", "header": False, "quote": "none"}
    assert drafted["missing"] == ["\\N"]
    roles = [column["role"] for column in drafted["columns"]]
    assert roles == ["label", "numerical", "categorical", "categorical_list"]
    assert drafted["columns"][3]["separator"] == "\x02"
    called("clicks", "--input", log, "--schema", draft, "--output", tmp_path / "made")
    assert not any(Manifest.load(tmp_path / "made").rejected.values())


def test_ratings_of_hive(tmp_path):
    rows = [(u, i, 5, 978_300_000 + 60 * i) for u in range(1, 9) for i in range(u, u + 6)]
    made = []
    for name, delimiter in (("hive", "\x01"), ("commas", ",")):
        lines = ["userId,movieId,rating,timestamp", *(",".join(map(str, row)) for row in rows)]
        (tmp_path / name).write_text("\n".join(lines).replace(",", delimiter) + "\n")
        words = (f"--input={tmp_path / name}", f"--output={tmp_path / f'{name}_made'}")
        called("movielens", *words, "--min_item_count=0")
        made.append(Manifest.load(tmp_path / f"{name}_made").fingerprint)
    assert made[0] == made[1]
