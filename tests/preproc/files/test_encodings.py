# SPDX-License-Identifier: Apache-2.0
"""Texts as office programs write them: marks, UTF-16, CR line ends, and encodings that are none."""

import codecs
import gzip
import random
from pathlib import Path

import pytest

from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.infer import infer_schema
from preproc.files.input_file import InputFile
from preproc.files.quarantine import QUARANTINE_FILE
from preproc.files.text_chunks import read_chunks
from preproc.ratings.job import AMAZON, MOVIELENS
from recsys.data.manifest import Manifest
from tests.preproc.clicks.rows import good_text
from tests.preproc.clicks.rows import run as run_clicks
from tests.preproc.clicks.schema_log import prepare
from tests.preproc.ratings.oracle import run as run_ratings
from tests.tools import needs

MARK = codecs.BOM_UTF8
SCHEMA = """
dialect: {{delimiter: ";", header: {header}}}
label: {{column: click, positive: ["ja"], negative: ["nein"]}}
columns:
- {{name: click, role: label}}
- {{name: town, role: categorical, type: string}}
- {{name: sum, role: numerical, type: float}}
split: {{fractions: [0.8, 0.1, 0.1]}}
"""
ENGINES = [pytest.param("native", marks=needs("compiled Criteo kernel")), "reference"]


def shop_lines(*, header: bool) -> list[str]:
    """Returns rows of the schema, of which the first and the 40th are bad."""
    rng = random.Random(6)
    lines = [f"{rng.choice(['ja', 'nein'])};{rng.choice(['Köln', 'Ems'])};{n}.5" for n in range(90)]
    lines[0] = "ja;Köln;x"
    lines[40] = "ja;Ems"
    return [*(["click;town;sum"] if header else []), *lines]


def of_clicks(folder: Path, name: str, text: bytes, *, engine: str, header: bool) -> Manifest:
    """Prepares a log by the schema."""
    (folder / name).write_bytes(text)
    schema = folder / "schema.yaml"
    schema.write_text(SCHEMA.format(header=str(header).lower()))
    settings = {"settings": NativeSettings(unit_bytes=300)} if engine == "native" else {}
    fields = {"engine": engine, "max_bad_fraction": 0.1, **settings}
    return prepare(folder / name, schema, folder / f"{name}.data", **fields)


def columns_of(manifest: Manifest) -> dict[str, object]:
    """Returns the files of a dataset but that of its quarantined rows."""
    return {name: of for name, of in manifest.files.items() if name != QUARANTINE_FILE}


def quarantined(folder: Path, name: str) -> list[list[str]]:
    """Returns offset, line and the rest of each quarantined row."""
    text = (folder / f"{name}.data" / "quarantine.csv").read_text()
    return [line.split(",", 3)[1:] for line in text.splitlines()[1:]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_mark_before_a_click_log_is_no_part_of_it(engine, header, pack, tmp_path):
    text = "\n".join(shop_lines(header=header)).encode()
    fields = {"engine": engine, "header": header}
    expected = of_clicks(tmp_path, "without", pack(text), **fields)
    made = of_clicks(tmp_path, "marked", pack(MARK + text), **fields)
    assert columns_of(made) == columns_of(expected)
    assert made.rejected == expected.rejected
    assert made.rejected["number"] == made.rejected["columns"] == 1
    later = [[str(int(at) + 3), *row] for at, *row in quarantined(tmp_path, "without")]
    assert quarantined(tmp_path, "marked") == later


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mark_before_a_criteo_log_is_no_part_of_it(engine, tmp_path):
    text = good_text(200, seed=1)
    semantics = ClicksSemantics(split_fractions=(0.8, 0.1, 0.1), frequency_limit=2)
    made = []
    for name, content in (("without", text), ("marked", MARK + text)):
        (tmp_path / name).write_bytes(content)
        output = tmp_path / f"{name}.data"
        made.append(run_clicks(tmp_path / name, output, engine=engine, semantics=semantics))
    assert made[0].fingerprint == made[1].fingerprint


def test_chunks_begin_after_a_mark(tmp_path):
    """NVTabular's engine and ratings read chunks; a mark may stand alone in the first block."""
    for text in (MARK + b"a\nbc\n", MARK + b"a\nbc", MARK):
        (tmp_path / "text").write_bytes(text)
        for chunk_bytes in (1, 4, 99):
            chunks = [*read_chunks(InputFile.open(tmp_path / "text"), chunk_bytes, "a text")]
            rows = [chunk.row(i) for chunk in chunks for i in range(chunk.num_lines)]
            assert rows == ([b"a", b"bc"] if len(text) > 3 else [])
            assert [chunk.offset for chunk in chunks][:1] == [3] * (len(text) > 3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "cr"])
def test_click_logs_of_utf16_and_with_cr_are_read(engine, pack, encoding, tmp_path):
    """Prepared and inferred as the same text in UTF-8 with LF."""
    text = "\n".join(shop_lines(header=True)) + "\n"
    other = text.replace("\n", "\r").encode() if encoding == "cr" else b""
    mark = codecs.BOM_UTF16_LE if encoding == "utf-16-le" else codecs.BOM_UTF16_BE
    other = other or mark + text.encode(encoding)
    fields = {"engine": engine, "header": True}
    expected = of_clicks(tmp_path, "log", text.encode(), **fields)
    draft = infer_schema(tmp_path / "log")
    made = of_clicks(tmp_path, "other", pack(other), **fields)
    assert columns_of(made) == columns_of(expected)
    assert [row[1:] for row in quarantined(tmp_path, "other")] == [
        row[1:] for row in quarantined(tmp_path, "log")
    ]
    assert infer_schema(tmp_path / "other").replace("other", "log") == draft


RATINGS = [(f"{u}", f"{u * 7 % 11 + t}", "4.0", f"{10**9 + t}") for u in range(9) for t in range(5)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("source", "separator", "header"),
    [
        (MOVIELENS, ",", "userId,movieId,rating,timestamp"),
        (MOVIELENS, ";", "userId;movieId;rating;timestamp"),
        (MOVIELENS, ";", '"userId";"movieId";"rating";"timestamp"'),
        (MOVIELENS, "::", ""),
        (MOVIELENS, "\t", ""),
        (AMAZON, "\t", "user_id\tparent_asin\trating\ttimestamp"),
    ],
)
def test_a_mark_before_ratings_is_no_part_of_them(source, separator, header, pack, tmp_path):
    text = "\n".join([*([header] if header else []), *map(separator.join, RATINGS)]).encode()
    made = []
    for name, content in (("without", text), ("marked", MARK + text)):
        (tmp_path / name).write_bytes(pack(content))
        limits = {"min_user_count": 3, "min_item_count": 0}
        folder = run_ratings(tmp_path / name, tmp_path / f"{name}.data", family=source, **limits)
        made.append(Manifest.load(folder))
    assert made[0].fingerprint == made[1].fingerprint
    assert made[0].rows["train"] > 0
