# SPDX-License-Identifier: Apache-2.0
"""Texts as office programs write them: marks, UTF-16, CR line ends, and encodings that are none."""

import codecs
import gzip
import random
import re
import shlex
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from preproc.clicks.engines.native.units import NativeSettings
from preproc.clicks.rules import ClicksSemantics
from preproc.clicks.schema.draft.infer import infer_schema
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.quarantine import QUARANTINE_FILE
from preproc.files.text_chunks import read_chunks
from preproc.ratings.job import AMAZON, MOVIELENS
from recsys.data.manifest import Manifest
from tests import harness
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.rows import good_text
from tests.preproc.clicks.rows import run as run_clicks
from tests.preproc.clicks.schema_log import prepare
from tests.preproc.programs import called
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
            chunks = [*read_chunks(InputFile.open(tmp_path / "text"), chunk_bytes, "a text", b"")]
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


def test_the_commands_of_the_page_mend_files_of_spreadsheets(tmp_path):
    page = (harness.REPOSITORY / "docs/own_clicks.md").read_text()
    block = page.partition("### Files of spreadsheets")[2].split("```")[1]
    iconv, commas, thousands = re.findall(r"^(?:iconv|sed).*$", block, re.MULTILINE)
    for command, old, new in (
        (iconv, "Köln;1\n".encode("cp1252"), "Köln;1\n"),
        (commas, b'a;15,53;1,2;-3,5;"x, 1,5";7\r\n1,5\n', 'a;15.53;1.2;-3.5;"x, 1,5";7\r\n1.5\n'),
        (thousands, b'1,"93,001","-1,234,567.5","a,b"\n', '1,"93001","-1234567.5","a,b"\n'),
    ):
        (tmp_path / "old.csv").write_bytes(old)
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        assert (tmp_path / "new.csv").read_bytes().decode() == new


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
@pytest.mark.parametrize("rows", [30, 3000], ids=["start", "later"])
def test_click_logs_of_windows_1252_are_told_with_the_command_that_converts_them(
    name, rows, tmp_path
):
    """Never with the advice to leave most rows out, wherever the first umlaut is."""
    towns = ["Kölnÿ", "Süd"]
    lines = [f"{n % 2},{'Ems' if n < rows - 30 else towns[n % 2]}" for n in range(rows)]
    text = "\n".join(["click,town", *lines]) + "\n"
    pack = gzip.compress if name.endswith("gz") else bytes
    source, schema = tmp_path / name, tmp_path / "schema.yaml"
    source.write_bytes(pack(text.encode("cp1252")))
    columns = "columns: [{name: town, role: categorical, type: string}]"
    split = "split: {random: {fractions: [0.8, 0.1, 0.1]}}"
    schema.write_text(f"label: {{column: click}}\n{columns}\n{split}\n")
    prepare_it = (f"--schema={schema}", f"--output={tmp_path / 'data'}", "--progress=none")
    error = called("clicks", f"--input={source}", *prepare_it, status=2 if rows == 30 else 3)
    assert f"line {max(rows - 30, 0) + 2}" in error
    assert "max_bad_fraction" not in error
    with refusal(source, f"line {max(rows - 30, 0) + 2}", "0xf6", kind=PreprocError):
        infer_schema(source)
    command = re.search(r"\n  (.*iconv .*)", error)[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    made = tmp_path / shlex.split(command)[-1]
    assert made.read_text() == text
    called("clicks", f"--input={made}", *prepare_it)
    assert "role: categorical" in infer_schema(made)


def test_bytes_of_a_table_are_no_text_of_another_encoding(tmp_path):
    """Nothing converts a table; its rows are told."""
    towns = [b"Ems"] * 2970 + ["Köln".encode("cp1252"), "Süd".encode("cp1252")] * 15
    table = pa.table({"click": [0, 1] * 1500, "town": towns})
    parquet.write_table(table, tmp_path / "log.parquet")
    schema = tmp_path / "schema.yaml"
    columns = "columns: [{name: town, role: categorical, type: string}]"
    schema.write_text(f"label: {{column: click}}\n{columns}\nsplit: {{rows: [-1, 0, 0]}}\n")
    given = (f"--input={tmp_path / 'log.parquet'}", f"--schema={schema}", "--progress=none")
    error = called("clicks", *given, f"--output={tmp_path / 'data'}", status=3)
    assert "column town" in error
    assert "iconv" not in error


def test_decimal_commas_of_click_logs_are_told(tmp_path):
    source, schema = tmp_path / "log.csv", tmp_path / "schema.yaml"
    for value in ("15,53", "1.234,50", "1,234"):
        source.write_text("click;town;sum\n" + f"1;a;{value}\n0;b;{value}\n" * 60)
        schema.write_text(SCHEMA.format(header="true").replace("ja", "1").replace("nein", "0"))
        error = called(
            *("clicks", f"--input={source}", f"--schema={schema}", "--progress=none"),
            f"--output={tmp_path / 'data'}",
            status=2,
        )
        assert_tells(error, "sum", value, "(number)", "docs/own_clicks.md")
        assert "docs/own_clicks.md" in infer_schema(source)
