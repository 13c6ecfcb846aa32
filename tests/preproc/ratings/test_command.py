# SPDX-License-Identifier: Apache-2.0
"""The command lines: flags, malformed files, exit statuses, interruption; nothing half-written."""

import bz2
import csv
import gzip
import json
import lzma
import os
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
from preproc.ratings.job import MOVIELENS as MOVIELENS_SOURCE
from preproc.synthetic.ratings import RatingsConfig, generate
from recsys.data.manifest import Manifest
from tests import harness
from tests.harness import assert_tells, refusal
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


OBJECTS = [json.dumps(REVIEW)] * 9
MALFORMED = {  # line, reason and values of each message; tests of the grammar have every other way
    "short row": (CSV, "1,2,4.0", ("columns", "3", "4", "user,item,rating,timestamp")),
    "blank line": (CSV, "", ("columns", "1", "4")),
    "dat with tab": (DAT, "1\t2\t4\t5", ("columns", "1", "4", "user::item::rating::timestamp")),
    "text": (["1 2"] * 9, "1  2", ("columns", "3", "2", "user SPACE item")),
    "user name": (CSV, "x,2,4.0,5", ("user", "'x'", "18", "--id_type string")),
    "huge id": (CSV, f"{10**18},2,4.0,5", ("user", f"'{10**18}'", "18")),
    "long name": (AMAZON, f"A1,{'B' * 129},4.0,5", ("item", f"'{'B' * 60}...'", "128")),
    "rating": (CSV, "1,2,nan,5", ("rating", "'nan'", "1000")),
    "real time": (CSV, "1,2,4.0,5.", ("timestamp", "'5.'", "2024-12-31T23:59:00Z")),
    "late fraction": (CSV + CSV[1:] * 5, "1,2,4.0,5.5", ("timestamp", "5.5", "7.0", "100")),
    "open quote": (CSV, '1,"2,4.0,5', ("quote",)),
    "single quote": (AMAZON, '"A"1,B2,4,5', ("quote",)),
    "quoted tab": (AMAZON, '"A\t1",B2,4,5', ("encoding", r"user 'A\t1'")),
    "bytes": (CSV, "1,\xff,4.0,5", ("encoding", r"item '\xff'")),
    "json cut": (OBJECTS, '{"asin": "B', ("json",)),
    "json key": (OBJECTS, "{}", ("user", "''", "reviewerID")),
    "json list": (OBJECTS, json.dumps(REVIEW | {"asin": ["B1"]}), ("json", "asin")),
    "json rating": (
        OBJECTS,
        json.dumps(REVIEW | {"overall": "?"}),
        ("rating", "'?'", "overall", "1000"),
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_rows_are_refused_by_file_line_field_and_value(tmp_path, case):
    lines, row, facts = MALFORMED[case]
    number = 105 if case == "late fraction" else 5
    source = write(tmp_path / "log.txt", edited(lines, number, row))
    command = "amazon" if lines in (AMAZON, OBJECTS) else "movielens"
    error = call(command, source, "--progress=none", status=3)
    assert error.count("\n") == 1
    reason, *values = facts
    assert_tells(error, f"{source}, line {number}", f"({reason})", *values, "--max_bad_fraction")
    assert [p.name for p in tmp_path.iterdir()] == ["log.txt"]


def test_a_last_row_that_is_cut_off_is_refused_with_its_place(tmp_path):
    source = write(tmp_path / "log.txt", [*CSV, "1,2"])
    byte = source.stat().st_size - len("1,2\n")
    assert_tells(call("movielens", source, status=3), f"{source}, line 26, byte {byte}", "2", "4")


DATED = [f"3f2504e0-4f89-11d3-9a0c-0305e82c330{u},sku-{i}" for u in range(4) for i in range(6)]
DATED = [f"{ids},4.0,4 Dec 1997" for ids in DATED]


@pytest.mark.parametrize(("lines", "status"), [([HEADER, *DATED], 3), (DATED, 2)])
def test_dates_are_blamed_and_not_the_ids(tmp_path, lines, status):
    source = write(tmp_path / "ratings.csv", lines)
    error = call("movielens", source, status=status)
    assert_tells(error, "timestamp", "'4 Dec 1997'", "2024-12-31")
    assert "user '" not in error
    dated = [line.replace("4 Dec 1997", str(n)) for n, line in enumerate(DATED)]
    source = write(tmp_path / "ratings.csv", [HEADER, *dated])
    call("movielens", source)


def test_a_late_id_of_text_needs_the_type(tmp_path):
    source = write(tmp_path / "ratings.csv", [HEADER, *CSV[1:] * 21, "1,X294,4.0,9"])
    made = tmp_path / "made"
    error = call("movielens", source, status=3)
    assert_tells(error, "line 506", "item", "'X294'", "18", "--id_type string")
    call("movielens", source, "--id_type=string")
    assert decode(made)[1][-1] == "X294"
    call("movielens", source, "--id_type=integer", made="no", status=3)
    error = call("movielens", source, "--id_type=uuid", made="no", status=2)
    assert_tells(error, "--id_type", "auto | integer | string")
    dat = write(tmp_path / "ratings.dat", DAT)
    call("movielens", dat, "--id_type=string", made="no", status=2)
    flags = ["--id_type=string", "--format=dat"]
    error = call("movielens", dat, *flags, made="no", status=2)
    assert_tells(error, "--id_type string", "dat")


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
    assert_tells(error, str(shop), "line 1", "customer, sku, stars, when", f"--columns {NAMES}")
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
    assert_tells(error, "--columns", str(source), "'article'", ", ".join(wide[0][1:]))
    error = call(command, source, status=2)
    assert_tells(error, "'', when, title, sku, stars, customer", f"--columns {NAMES}")
    call(command, source, *named, "--max_bad_fraction=0.1")
    columns = Manifest.load(tmp_path / "made").semantics["columns"]
    assert columns == ["timestamp", "item", "rating", "user"]


@pytest.mark.parametrize(
    "names", ["user=a", "user=a,item=a", "user=a,item=b,item=c", "user=a,item=", "a,b", "who=a"]
)
def test_names_of_columns_that_make_no_sense(tmp_path, names):
    source = write(tmp_path / "shop.csv", SHOP)
    error = call("movielens", source, f"--columns={names}", status=2)
    assert "auto | user=NAME,item=NAME,rating=NAME,timestamp=NAME" in error


@pytest.mark.parametrize("progress", ["auto", "json", "none"])
def test_times_that_are_not_read_are_told(tmp_path, progress):
    source = write(tmp_path / "shop.csv", SHOP)
    flags = ["--columns=user=customer,item=sku", f"--progress={progress}", "--overwrite"]
    told = "timestamp=when"
    assert_tells(call("movielens", source, *flags), str(source), told, "--columns")
    flags[0] += ",timestamp=when"
    assert told not in call("movielens", source, *flags)


def test_repeated_rows_are_told(tmp_path):
    again = [CSV[1], CSV[1], CSV[9], CSV[3].replace("4.0", "2.0")]
    other = CSV[1].rsplit(",", 1)[0] + ",77"  # the same item later is no repeat
    source = write(tmp_path / "log.csv", [*CSV, *again, other])
    told = "user, item, timestamp"
    assert_tells(call("movielens", source), "4 rows", told, "from 1970-01-01 to 1970-01-01")
    manifest = Manifest.load(tmp_path / "made")
    assert manifest.statistics["repeated_rows"] == 4
    assert manifest.statistics["interactions"] == 29
    assert f"({told})" not in call("movielens", source, "--progress=json", made="json")
    assert f"({told})" not in call("movielens", write(source, [*CSV, other]), made="once")
    assert Manifest.load(tmp_path / "once").statistics["repeated_rows"] == 0
    text = write(tmp_path / "text", ["1 2"] * 5)
    call("movielens", text, made="untimed")
    assert "repeated_rows" not in Manifest.load(tmp_path / "untimed").statistics


UNUSABLE = {
    "empty": (b"", ()),
    "header alone": (HEADER.encode() + b"\n", ()),
    "no header": (b"1,2,4.0,5\n" * 9, ("line 1", HEADER, "'1,2,4.0,5'")),
    "web page": (b"<html>\n<body>404</body>\n", ("2", "'<html>'", "--format")),
    "semicolons": (b"1;2;3;4\n" * 9, ("line 1", HEADER.replace(",", ";"))),
    "no line end": (b"1" * (2**20 + 9), ("byte 0", "1 MiB")),
    "late long line": (b"1::2::3::4\n" * 9 + b"1" * (2**20 + 9), ("byte 99", "1 MiB")),
    "cut bzip2": (bz2.compress(b"1::2::3::4\n")[:-9], ("bzip2", "byte 0")),
    "zip": (b"PK\x03\x04" + b"0" * 99, ("zip-compressed", "unzip ratings")),
    "cut gzip": (gzip.compress(os.urandom(9999))[:-99], ("gzip", "byte 0")),
    "damaged gzip": (b"\x1f\x8b\x08\x00" + b"\xff" * 99, ("gzip", "byte 0")),
    "array": (b'[{"userId": 1}]', ("jq -c '.[]' ratings",)),
    "broken object": (b'{"userId": 1\n', ("line 1",)),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_files_end_with_status_2(tmp_path, case):
    content, facts = UNUSABLE[case]
    source = tmp_path / "ratings"
    source.write_bytes(content)
    assert_tells(call("movielens", source, status=2), str(source), *facts)
    assert [p.name for p in tmp_path.iterdir()] == ["ratings"]


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("--min_user_count=2", ("--min_user_count", "3", "2")),
        ("--min_item_count=-1", ("--min_item_count", "-1")),
        ("--min_rating=nan", ("--min_rating", "nan")),
        ("--min_rating=6", ("24", "--min_rating 6")),
        ("--kcore=twice", ("--kcore", "iterated | once", "twice")),
        ("--max_bad_fraction=-0.1", ("--max_bad_fraction", "[0, 1]", "-0.1")),
        ("--max_bad_fraction=2", ("--max_bad_fraction", "[0, 1]", "2")),
        ("--format=json", ("--format", " | ".join(MOVIELENS_SOURCE.format_names), "json")),
        ("--format=dat", ("25", "movielens", "dat")),
        ("--progress=loud", ("--progress", "loud")),
        (
            "--columns=user,item",
            ("--columns", "auto | user=NAME,item=NAME,rating=NAME", "'user,item'"),
        ),
        ("--master=nowhere", ("--master", "local[*], local[N], spark://HOST:PORT", "nowhere")),
        ("stray", ("'stray'",)),
        ("--input=", ("--input",)),
        ("--input=/nowhere", ("--input", "/nowhere")),
        ("--input=.", ("--input",)),
    ],
)
def test_bad_flags_end_with_status_2_and_one_message(tmp_path, monkeypatch, flag, facts):
    source = write(tmp_path / "ratings.csv", CSV)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_tells(call("movielens", source, flag, status=2), *facts)
    assert not (tmp_path / "made").exists()


def test_spark_without_pyspark_and_its_flags(tmp_path, monkeypatch):
    source = write(tmp_path / "ratings.csv", CSV)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    error = call("movielens", source, "--engine=spark", "--master=local[3]", status=2)
    assert_tells(error, "--engine spark", "PySpark", "make spark")
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
    error = call("movielens", source, "--min_rating=4", status=2)
    assert_tells(error, "--min_rating 4", str(source))


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
    assert_tells(call("amazon", unclear, status=2), str(unclear), "--columns user,item")
    flags = ["--columns=user,item", "--min_item_count=0"]
    call("amazon", unclear, *flags)
    error = call("amazon", tmp_path / "2023", "--columns=item,user", made="no", status=2)
    assert_tells(error, "--columns item,user", str(tmp_path / "2023"), "user,item")


def test_quarantine_keeps_what_is_left_out(tmp_path):
    lines = edited(edited(CSV, 5, "1,2,\xe9,5"), 9, "")
    source = write(tmp_path / "log.csv", lines)
    first = call("movielens", source, "--progress=none", status=3)
    assert_tells(first, str(source), "line 5", r"'\xe9'", "2", "--max_bad_fraction 0.2")
    error = call("movielens", source, "--max_bad_fraction=0.01", "--progress=none", status=3)
    assert_tells(error, "2", "--max_bad_fraction 0.01", "line 5", "line 9")
    assert not (tmp_path / "made").exists()
    call("movielens", source, "--max_bad_fraction=0.1")
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
    place = f"{source}, line {number}, byte {byte}"
    with refusal(place, "user 'userId'", kind=TooManyRejectedRowsError):
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
    flags = ["--max_bad_fraction=1"]
    error = call("movielens", source, *flags, status=3)
    assert_tells(error, str(source), "5", "line 31", "columns")


def test_an_earlier_dataset_stays_until_the_new_one_is_done(tmp_path):
    source = write(tmp_path / "log.csv", CSV)
    made = tmp_path / "made"
    call("movielens", source)
    before = tree(made)
    assert_tells(call("movielens", source, status=2), str(made), "--overwrite")
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
    assert_tells(call("movielens", source, status=2), str(source))
    assert [p.name for p in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize(
    "stage",
    ["pipeline.read_ratings", "pipeline.run_stages", "pipeline.write_sequences"],
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
