# SPDX-License-Identifier: Apache-2.0
"""The command lines: flags, malformed files, exit statuses, interruption; nothing half-written."""

import bz2
import csv
import gzip
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from preproc.files import input_file
from preproc.files.errors import TooManyRejectedRowsError
from preproc.files.input_file import InputFile
from preproc.files.raw.blank_end import WHITESPACE
from preproc.files.text_chunks import read_chunks
from preproc.ratings import command as ratings_command
from preproc.ratings import pipeline as ratings_pipeline
from preproc.ratings import read as ratings_read
from preproc.ratings.job import AMAZON as AMAZON_SOURCE
from preproc.synthetic.ratings import RatingsConfig, generate
from recsys.data.manifest import Manifest
from tests import harness
from tests.preproc.clicks.rows import zstd_compress
from tests.preproc.programs import called
from tests.preproc.ratings.oracle import decode, run, tree

HEADER = "userId,movieId,rating,timestamp"
CSV = [HEADER, *(f"{u},{i},4.0,{i}" for u in range(4) for i in range(6))]
DAT = [line.replace(",", "::") for line in CSV[1:]]
AMAZON = [f"A{u:013d},B{i:09d},4.0,{i}" for u in range(4) for i in range(6)]
REVIEW = {"reviewerID": "A1", "asin": "B1", "overall": 5.0, "unixReviewTime": 7}


def call(command: str, source: Path, *flags: object, made: str = "made", status: int = 0) -> str:
    """Runs a command, which makes a dataset beside its source; returns what it says."""
    paths = (f"--input={source}", f"--output={source.parent / made}")
    return called(command, *paths, *flags, status=status)


def write(path: Path, lines, end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode("latin-1"))
    return path


def edited(lines, number: int, text: str):
    """Returns lines in which the one with a number (from 1) is another."""
    return [*lines[: number - 1], text, *lines[number:]]


GOOD_OBJECTS = [json.dumps(REVIEW)] * 9
MALFORMED = {  # a line of each message; tests of the grammar have every other way to be wrong
    "short row": ("movielens", edited(CSV, 5, "1,2,4.0"), "line 5.*3 fields, needed are 4"),
    "blank line": ("movielens", edited(CSV, 5, ""), "line 5.*1 field, needed are 4"),
    "dat with tab": ("movielens", edited(DAT, 5, "1\t2\t4\t5"), "line 5.*1 field, needed are 4"),
    "text": ("movielens", edited(["1 2"] * 9, 5, "1  2"), "line 5.*3 fields, needed are 2"),
    "cut end": ("movielens", [*CSV, "1,2"], "line 26, byte .*2 fields, needed are 4"),
    "user name": ("movielens", edited(CSV, 5, "x,2,4.0,5"), "line 5.*user 'x' must be a whole"),
    "huge id": ("movielens", edited(CSV, 5, f"{10**18},2,4.0,5"), "line 5.*at most 18 digits"),
    "long name": (
        "amazon",
        edited(AMAZON, 5, f"A1,{'B' * 129},4.0,5"),
        "line 5.*item 'BBB.* must be",
    ),
    "rating": ("movielens", edited(CSV, 5, "1,2,nan,5"), "line 5.*rating 'nan' must be a number"),
    "real time": ("movielens", edited(CSV, 5, "1,2,4.0,5."), r"line 5.*timestamp '5\.' must be"),
    "late fraction": (
        "movielens",
        edited(CSV + CSV[1:] * 5, 105, "1,2,4.0,5.5"),
        r"line 105.*timestamp 5.5 has a fraction, which none of the first rows has: write a time",
    ),
    "open quote": ("movielens", edited(CSV, 5, '1,"2,4.0,5'), "line 5.*quotes do not go around"),
    "single quote": (
        "amazon",
        edited(AMAZON, 5, '"A"1,B2,4,5'),
        "line 5.*a quoted field is doubled",
    ),
    "quoted tab": ("amazon", edited(AMAZON, 5, '"A\t1",B2,4,5'), r"line 5.*'A\\t1' holds bytes"),
    "bytes": ("movielens", edited(CSV, 5, "1,\xff,4.0,5"), r"line 5.*item '\\xff' holds bytes"),
    "json cut": ("amazon", edited(GOOD_OBJECTS, 5, '{"asin": "B'), r"line 5.*not JSON"),
    "json key": ("amazon", edited(GOOD_OBJECTS, 5, "{}"), "line 5.*user is missing"),
    "json rating": (
        "amazon",
        edited(GOOD_OBJECTS, 5, json.dumps(REVIEW | {"overall": "5"})),
        r"line 5.*rating '\"5\"' \(key overall\) must be a number",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_rows_are_refused_by_file_line_field_and_value(tmp_path, case):
    command, lines, message = MALFORMED[case]
    source = write(tmp_path / "log.txt", lines)
    error = call(command, source, "--progress=none", status=3)
    assert error.startswith(f"error: {source}, line ")
    assert error.count("\n") == 1
    assert "--bad_rows quarantine" in error
    assert re.search(message, error), error
    assert [p.name for p in tmp_path.iterdir()] == ["log.txt"]


DATED = [f"3f2504e0-4f89-11d3-9a0c-0305e82c330{u},sku-{i}" for u in range(4) for i in range(6)]
DATED = [f"{ids},4.0,4 Dec 1997" for ids in DATED]


@pytest.mark.parametrize(("lines", "status"), [([HEADER, *DATED], 3), (DATED, 2)])
def test_dates_are_blamed_and_not_the_ids(tmp_path, lines, status):
    source = write(tmp_path / "ratings.csv", lines)
    error = call("movielens", source, status=status)
    assert "timestamp '4 Dec 1997' must be a number" in error
    assert "or a date such as 2024-12-31, " in error
    assert "must be a whole number" not in error
    dated = [line.replace("4 Dec 1997", str(n)) for n, line in enumerate(DATED)]
    source = write(tmp_path / "ratings.csv", [HEADER, *dated])
    call("movielens", source)


def test_a_late_id_of_text_needs_the_type(tmp_path):
    source = write(tmp_path / "ratings.csv", [HEADER, *CSV[1:] * 21, "1,X294,4.0,9"])
    made = tmp_path / "made"
    error = call("movielens", source, status=3)
    assert "line 506" in error
    assert "item 'X294' must be a whole number" in error
    assert "take ids as text with --id_type string" in error
    call("movielens", source, "--id_type=string")
    assert decode(made)[1][-1] == "X294"
    call("movielens", source, "--id_type=integer", made="no", status=3)
    error = call("movielens", source, "--id_type=uuid", made="no", status=2)
    assert "--id_type must be one of auto | integer | string" in error
    dat = write(tmp_path / "ratings.dat", DAT)
    call("movielens", dat, "--id_type=string", made="no", status=2)
    flags = ["--id_type=string", "--format=dat"]
    error = call("movielens", dat, *flags, made="no", status=2)
    assert "--id_type string: files of format dat have other ids" in error


def test_the_type_of_ids_does_not_change_the_dataset(tmp_path):
    source = write(tmp_path / "ratings.csv", [HEADER, "10,7,4.0,1", *CSV[1:], "9,10,1.0,3"])
    trees = []
    for id_type in ("auto", "integer", "string"):
        call("movielens", source, "--min_user_count=3", f"--id_type={id_type}", made=id_type)
        trees.append(tree(tmp_path / id_type))
    assert trees[0] == trees[1] == trees[2]


@pytest.mark.parametrize("blank", ["\n", "\n\n\n", "\r\n", " \t\n\n", " ", "\n" * 200])
@pytest.mark.parametrize("chunk_bytes", [16, 2**20])
def test_blank_lines_at_the_end_are_nothing(tmp_path, monkeypatch, blank, chunk_bytes):
    monkeypatch.setattr(input_file, "BLOCK_BYTES", chunk_bytes)
    monkeypatch.setattr(ratings_pipeline.prepare, "__defaults__", (chunk_bytes,))
    for lines in (CSV, DAT, ["1 2", "1 3", "1 4"]):
        source = write(tmp_path / "log", lines)
        expected = prepared("movielens", source)
        source.write_bytes(source.read_bytes() + blank.encode())
        assert prepared("movielens", source) == expected
        source.write_bytes(source.read_bytes() + f"\n{lines[-1]}\n".encode())
        assert f"line {len(lines) + 1}, byte" in call("movielens", source, status=3)


SHOP = ["customer,sku,stars,when", *CSV[1:]]
NAMES = "user=customer,item=sku,rating=stars,timestamp=when"


@pytest.mark.parametrize("command", ["movielens", "amazon"])
def test_other_headers_are_told_and_named(tmp_path, command):
    expected = prepared("movielens", write(tmp_path / "log.csv", CSV))
    shop = write(tmp_path / "shop.csv", SHOP)
    flags = [] if command == "movielens" else ["--columns=user,item"]
    error = call(command, shop, *flags, status=2)
    assert "line 1 looks like a header of unknown names: customer, sku, stars, when" in error
    assert f"such as --columns {NAMES}" in error
    named = [f"--columns={NAMES}", "--min_item_count=0"]
    assert prepared(command, shop, *named) == expected
    assert prepared(command, write(shop, map(quoted, SHOP)), *named) == expected
    # Other columns, in another order, and without those that may be missing.
    wide = [["", "when", "title", "sku", "stars", "customer"]]
    titles = ["a b", '"x, ""y"""', "\xe9", ""]
    for number, (user, item, stars, when) in enumerate(line.split(",") for line in CSV[1:]):
        wide.append([str(number), when, titles[number % 4], item, stars, user])
    source = write(tmp_path / "wide.csv", map(",".join, wide))
    assert prepared(command, source, *named) == expected
    assert prepared(command, source, *named, "--min_rating=3") == expected
    for names in ("user=customer,item=sku", "item=sku,user=customer,timestamp=when"):
        assert prepared(command, source, f"--columns={names}", "--min_item_count=0") == expected
    error = call(command, source, named[0].replace("sku", "article"), status=2)
    assert "line 1 must have the name 'article' once; it is ',when,title" in error
    error = call(command, source, status=2)
    assert "unknown names: '', when, title, sku, stars, customer. Needed are" in error
    assert f"such as --columns {NAMES}" in error
    call(command, source, *named, "--bad_rows=quarantine")
    columns = Manifest.load(tmp_path / "made").semantics["columns"]
    assert columns == ["timestamp", "item", "rating", "user"]


@pytest.mark.parametrize(
    "names", ["user=a", "user=a,item=a", "user=a,item=b,item=c", "user=a,item=", "a,b", "who=a"]
)
def test_names_of_columns_that_make_no_sense(tmp_path, names):
    source = write(tmp_path / "shop.csv", SHOP)
    error = call("movielens", source, f"--columns={names}", status=2)
    assert "--columns must be auto | user=NAME,item=NAME,rating=NAME,timestamp=NAME" in error


@pytest.mark.parametrize("progress", ["auto", "json", "none"])
def test_times_that_are_not_read_are_told(tmp_path, progress):
    source = write(tmp_path / "shop.csv", SHOP)
    flags = ["--columns=user=customer,item=sku", f"--progress={progress}", "--overwrite"]
    told = "histories are in the order of the file; if when holds the times, add timestamp=when to"
    assert f"shop.csv: no column is the time, {told} --columns" in call("movielens", source, *flags)
    flags[0] += ",timestamp=when"
    assert "no column is the time" not in call("movielens", source, *flags)


def test_repeated_rows_are_told(tmp_path):
    again = [CSV[1], CSV[1], CSV[9], CSV[3].replace("4.0", "2.0")]
    other = CSV[1].rsplit(",", 1)[0] + ",77"  # the same item later is no repeat
    source = write(tmp_path / "log.csv", [*CSV, *again, other])
    told = "4 rows repeat an earlier row (same user, item, timestamp) and were kept"
    said = call("movielens", source)
    assert told in said
    assert "times, read as seconds since 1970: from 1970-01-01 to 1970-01-01" in said
    manifest = Manifest.load(tmp_path / "made")
    assert manifest.statistics["repeated_rows"] == 4
    assert manifest.statistics["interactions"] == 29
    assert "repeat an earlier" not in call("movielens", source, "--progress=json", made="json")
    assert "repeat an earlier" not in call("movielens", write(source, [*CSV, other]), made="once")
    assert Manifest.load(tmp_path / "once").statistics["repeated_rows"] == 0
    text = write(tmp_path / "text", ["1 2"] * 5)
    call("movielens", text, made="untimed")
    assert "repeated_rows" not in Manifest.load(tmp_path / "untimed").statistics


UNUSABLE = {
    "empty": (b"", "is empty"),
    "header alone": (HEADER.encode() + b"\n", "holds no valid row"),
    "no header": (b"1,2,4.0,5\n" * 9, "line 1 must be the header userId,movieId"),
    "web page": (b"<html>\n<body>404</body>\n", "none of the first 2 rows fits a format"),
    "semicolons": (b"1;2;3;4\n" * 9, "line 1 must be the header userId;movieId"),
    "no line end": (b"1" * (2**20 + 9), "is longer than 1 MiB"),
    "late long line": (b"1::2::3::4\n" * 9 + b"1" * (2**20 + 9), "line at byte 99 is longer"),
    "cut bzip2": (bz2.compress(b"1::2::3::4\n")[:-9], "the bzip2 data are damaged or end early"),
    "zip": (b"PK\x03\x04" + b"0" * 99, r"is zip-compressed.*unzip"),
    "cut gzip": (gzip.compress(os.urandom(9999))[:-99], "gzip data .* end early"),
    "damaged gzip": (
        b"\x1f\x8b\x08\x00" + b"\xff" * 99,
        "gzip data are damaged.* at byte 0",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_files_end_with_status_2(tmp_path, case):
    content, message = UNUSABLE[case]
    source = tmp_path / "ratings"
    source.write_bytes(content)
    error = call("movielens", source, status=2)
    assert re.search(message, error), error
    assert [p.name for p in tmp_path.iterdir()] == ["ratings"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--min_user_count=2", "--min_user_count must be at least 3"),
        ("--min_item_count=-1", "--min_item_count must not be negative"),
        ("--min_rating=nan", "--min_rating must be a finite number, got nan"),
        ("--min_rating=6", "no interaction is left of 24 after --min_rating 6"),
        ("--kcore=twice", "--kcore must be one of iterated | once"),
        ("--bad_rows=skip", "--bad_rows must be one of refuse | quarantine"),
        ("--max_bad_fraction=2", "--max_bad_fraction must lie in"),
        ("--format=json", "--format must be one of auto | csv | dat | udata | text"),
        ("--format=dat", "none of the first 25 rows fits a format of movielens (dat)"),
        ("--progress=loud", "--progress must be one of"),
        ("--columns=user,item", "--columns must be auto | user=NAME,item=NAME,rating=NAME"),
        ("--master=nowhere", "--master must be local[*], local[N], spark://HOST:PORT"),
        ("stray", "unexpected argument 'stray'"),
        ("--input=", "--input is needed"),
        ("--input=/nowhere", "no such file or folder"),
        ("--input=.", "holds no file"),
    ],
)
def test_bad_flags_end_with_status_2_and_one_message(tmp_path, monkeypatch, flag, message):
    source = write(tmp_path / "ratings.csv", CSV)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert message in call("movielens", source, flag, status=2)
    assert not (tmp_path / "made").exists()


def test_spark_without_pyspark_and_its_flags(tmp_path, monkeypatch):
    source = write(tmp_path / "ratings.csv", CSV)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    error = call("movielens", source, "--engine=spark", "--master=local[3]", status=2)
    assert "--engine spark needs PySpark" in error
    assert "make spark" in error
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.csv"]
    values = ratings_command.define_flags(AMAZON_SOURCE)
    values(["", "--input=in", "--output=out", "--engine=spark", "--master=local[3]",
            "--executor_memory=2g"])  # fmt: skip
    spark = ratings_command.job_from_flags(AMAZON_SOURCE, values).spark
    assert (spark.master, spark.executor_memory) == ("local[3]", "2g")


def test_a_folder_with_two_logs_is_ambiguous(tmp_path):
    (folder := tmp_path / "log").mkdir()
    write(folder / "ratings.csv", CSV)
    write(folder / "ratings.dat", DAT)
    assert "found ratings.csv, ratings.dat" in call("movielens", folder, status=2)
    (folder / "ratings.csv").unlink()
    (folder / "ratings.dat").write_text("1 2\n" * 9)
    (folder / "ratings.dat").rename(folder / "ml-1m.txt")
    assert "movielens text" in call("movielens", folder)


def test_a_threshold_needs_ratings(tmp_path):
    source = write(tmp_path / "log", ["1 2"] * 9)
    assert "holds no ratings" in call("movielens", source, "--min_rating=4", status=2)


def test_columns_of_amazon_are_told_apart(tmp_path):
    swapped = [",".join([i, u, r, t]) for u, i, r, t in (line.split(",") for line in AMAZON)]
    header = "user_id,parent_asin,rating,timestamp"
    made = {}
    for name, lines in {"2014": AMAZON, "2018": swapped, "2023": [header, *AMAZON]}.items():
        source = write(tmp_path / name, lines)
        said = call("amazon", source, "--min_item_count=0", made=f"made_{name}")
        assert ("columns item, user, rating, timestamp" in said) == (name == "2018")
        made[name] = decode(tmp_path / f"made_{name}")
    assert made["2014"] == made["2018"] == made["2023"]
    assert Manifest.load(tmp_path / "made_2018").semantics["columns"][:2] == ["item", "user"]
    unclear = write(tmp_path / "unclear", [line.replace("B000", "C000") for line in AMAZON])
    assert "say it with --columns" in call("amazon", unclear, status=2)
    flags = ["--columns=user,item", "--min_item_count=0"]
    call("amazon", unclear, *flags)
    error = call("amazon", tmp_path / "2023", "--columns=item,user", made="no", status=2)
    assert "the header of" in error


def test_quarantine_keeps_what_is_left_out(tmp_path):
    lines = edited(edited(CSV, 5, "1,2,\xe9,5"), 9, "")
    source = write(tmp_path / "log.csv", lines)
    flags = ["--bad_rows=quarantine", "--progress=none"]
    assert "2 bad rows, more than --max_bad_fraction" in call("movielens", source, *flags, status=3)
    assert "2 rows left out" in call("movielens", source, *flags, "--max_bad_fraction=0.1")
    with (tmp_path / "made/quarantine.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["line_number"], r["reason"], r["row"]) for r in rows] == [
        ("5", "encoding", "1,2,\\xe9,5"),
        ("9", "columns", ""),
    ]
    text = source.read_bytes()
    for row in rows:
        start = int(row["byte_offset"])
        assert text[:start].count(b"\n") + 1 == int(row["line_number"])
    manifest = Manifest.load(tmp_path / "made")
    assert manifest.rejected == {"columns": 1, "encoding": 1}
    assert (manifest.source_files[0]["rows"], manifest.source_files[0]["rejected"]) == (22, 2)


@pytest.mark.parametrize("number", range(2, len(CSV) + 1))
def test_a_header_is_one_only_in_the_first_line(tmp_path, number):
    source = write(tmp_path / "log.csv", edited(CSV, number, HEADER))
    byte = sum(len(line) + 1 for line in CSV[: number - 1])
    message = f"log.csv, line {number}, byte {byte}: user 'userId'"
    with pytest.raises(TooManyRejectedRowsError, match=message):
        run(source, tmp_path / "made", chunk_bytes=4)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd_compress])
def test_chunks_hold_each_line_once(tmp_path, pack):
    text = b"".join(b"%d::%d::4::%d\n" % (i, i * i, i) for i in range(30_000))
    text += b"1::2::4::3\n" * 100_000  # packed, a few hundred times shorter
    source = tmp_path / "log"
    source.write_bytes(pack(text))
    for chunk_bytes in (1000, 2**19, 2**30):
        chunks = list(
            read_chunks(InputFile.open(source), chunk_bytes, "a ratings file", WHITESPACE)
        )
        assert b"".join(c.text for c in chunks) == text
        assert (len(chunks) == 1) == (chunk_bytes > len(text))
        offset, line = 0, 1
        for chunk in chunks:
            assert (chunk.offset, chunk.first_line) == (offset, line)
            assert chunk.num_lines == chunk.text.count(b"\n")
            offset, line = offset + len(chunk.text), line + chunk.num_lines


def test_a_flood_of_bad_rows_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(ratings_read, "MAX_QUARANTINED_ROWS", 5)
    source = write(tmp_path / "log.csv", [*CSV, *["x"] * 6])
    flags = ["--bad_rows=quarantine", "--max_bad_fraction=1"]
    error = call("movielens", source, *flags, status=3)
    assert "more than 5 rows are bad, the last at line 31" in error


def test_an_earlier_dataset_stays_until_the_new_one_is_done(tmp_path):
    source = write(tmp_path / "log.csv", CSV)
    made = tmp_path / "made"
    call("movielens", source)
    before = tree(made)
    assert "already exists; add --overwrite" in call("movielens", source, status=2)
    write(source, edited(CSV, 5, "x"))
    call("movielens", source, "--overwrite", status=3)
    assert tree(made) == before
    write(source, CSV[:20])
    call("movielens", source, "--overwrite")
    assert tree(made) != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.csv", "made"]


def test_a_file_that_changes_meanwhile_is_refused(tmp_path, monkeypatch):
    source = write(tmp_path / "log.csv", CSV)
    read = ratings_pipeline.read_ratings

    def read_and_touch(*arguments):
        ratings = read(*arguments)
        write(source, CSV[:-1])
        return ratings

    monkeypatch.setattr(ratings_pipeline, "read_ratings", read_and_touch)
    assert "changed while it was read" in call("movielens", source, status=2)
    assert [p.name for p in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize(
    "stage",
    ["pipeline.read_ratings", "engines.pyarrow.collect", "pipeline.write_sequences"],
)
def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch, stage):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"preproc.ratings.{stage}", interrupted)
    source = write(tmp_path / "log.csv", CSV)
    assert "interrupted; nothing was written" in call("movielens", source, status=130)
    assert [p.name for p in tmp_path.iterdir()] == ["log.csv"]


def test_a_signal_ends_a_real_run_cleanly(tmp_path):
    config = RatingsConfig(
        output=tmp_path / "ratings.csv", users=20_000, items=2_000, interactions=1_500_000
    )
    generate(config)
    made = tmp_path / "made"
    command = ["-m", "preproc.movielens", f"--input={config.output}"]
    command += [f"--output={made}", "--progress=json"]
    for _ in range(10):
        with harness.started(*command, stderr=subprocess.PIPE) as process:
            process.stderr.readline()  # the settings: work has begun
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=harness.PATIENCE_S)
        if not made.exists():
            break
        shutil.rmtree(made)  # on a busy machine the run can end before the signal is sent
    assert "interrupted; nothing was written" in error
    # PyArrow sends a signal that it noticed once more, perhaps to an ending Python, which it kills:
    # to a shell both are 130.
    assert process.returncode in (130, -signal.SIGINT), error
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.csv"]


def test_progress_for_machines(tmp_path, capsys):
    source = write(tmp_path / "log.csv", CSV)
    said = call("movielens", source, "--progress=json")
    events = [json.loads(line) for line in said.splitlines()]
    assert [e["rows"] for e in events if e.get("stage") == "read"][-1] == 24
    assert capsys.readouterr().out == f"{tmp_path / 'made'}\n"


def prepared(command: str, source: Path, *flags: str):
    """Returns histories and items of a file, and removes the dataset."""
    call(command, source, *flags)
    made = decode(source.parent / "made")
    shutil.rmtree(source.parent / "made")
    return made


def quoted(line: str) -> str:
    return ",".join(f'"{field}"' for field in line.split(","))


def test_quotes_change_nothing(tmp_path):
    """As pandas and R write them: around every field, the header's too, or around some."""
    expected = prepared("movielens", write(tmp_path / "plain.csv", CSV))
    assert prepared("movielens", write(tmp_path / "all.csv", map(quoted, CSV))) == expected
    some = [quoted(line) if number % 3 else line for number, line in enumerate(CSV)]
    assert prepared("movielens", write(tmp_path / "some.csv", some, "\r\n")) == expected


def test_ids_as_the_world_has_them(tmp_path):
    items = ["Größe", "映画", "Toy Story (1995), again", 'the "x"', "\N{NO-BREAK SPACE}", "B1"]
    rows = [(user, item, place) for user in ("zoë", "李") for place, item in enumerate(items)]
    for command, header, flag in (
        ("movielens", HEADER.split(","), "--min_item_count=0"),
        ("amazon", ["user_id", "asin", "rating", "timestamp"], "--min_item_count=0"),
        ("amazon", None, "--columns=user,item"),
    ):
        source = tmp_path / "ratings.csv"
        with source.open("w", newline="", encoding="utf-8") as file:
            written = csv.writer(file)
            if header:
                written.writerow(header)
            written.writerows((user, item, 4.0, place) for user, item, place in reversed(rows))
        histories, known = prepared(command, source, flag, "--min_item_count=0")
        assert histories == {"zoë": items, "李": items}
        assert sorted(known) == sorted(items)
    source.write_text("".join(f"{u} {i}\n" for u, i, _ in rows if " " not in i and '"' not in i))
    kept = [item for item in items if " " not in item and '"' not in item]
    assert prepared("movielens", source)[0] == {"zoë": kept, "李": kept}
    objects = [dict(zip(REVIEW, (u, i, 4.0, t), strict=True)) for u, i, t in rows]
    for escape in (False, True):
        lines = (json.dumps(o, ensure_ascii=escape) + "\n" for o in objects)
        source.write_text("".join(lines))
        assert prepared("amazon", source, "--min_item_count=0")[0]["zoë"] == items


@pytest.mark.parametrize("command", ["movielens", "amazon"])
def test_times_with_decimals(tmp_path, command):
    """In their order, however many rows have decimals; equal ones in the order of the file."""
    times = ["-0.5", "-0.25", "0", "-0.0", "1609459200.1", "1609459200.25", '"1609459200.3"', "3e9"]
    times[-1] = "999999999999999999.0"
    rows = [f"{user},{place + 1},4.0,{time}" for user in (1, 2) for place, time in enumerate(times)]
    rows = sorted(rows, key=lambda row: row.split(",")[1] in "258")
    source = write(tmp_path / "ratings.csv", [HEADER, *rows])
    if command == "amazon":
        source = write(tmp_path / "ratings.csv", rows)
    flags = ["--columns=user,item", "--min_item_count=0"] if command == "amazon" else []
    histories, _ = prepared(command, source, *flags)
    order = ["1", "2", "3", "4", "5", "6", "7", "8"]
    assert histories == {"1": order, "2": order}
    cells = [row.replace('"', "").split(",") for row in rows]
    objects = [
        REVIEW | {"reviewerID": user, "asin": item, "unixReviewTime": min(float(time), 1e17)}
        for user, item, _, time in cells
    ]
    source = write(tmp_path / "reviews.json", map(json.dumps, objects[::-1]))
    histories, _ = prepared("amazon", source, "--min_item_count=0")
    order[2:4] = order[3:1:-1]  # equal times, here the other way around in the file
    assert histories == {"1": order, "2": order}
    whole = [row.rsplit(",", 1)[0] + f",{place}" for place, row in enumerate(rows)]
    same = [row + (".0" if place % 5 else "") for place, row in enumerate(whole)]
    flags = ["--columns=user,item", "--min_item_count=0"]
    plain = prepared("amazon", write(tmp_path / "whole", whole), *flags)
    assert plain == prepared("amazon", write(tmp_path / "zeros", same), *flags)
