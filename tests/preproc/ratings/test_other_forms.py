# SPDX-License-Identifier: Apache-2.0
"""Files of other forms are read; what refusals advise, done as a user would, leads to a dataset."""

import gzip
import io
import json
import os
import random
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys.data.manifest import Manifest
from recsys.data.sequences.files import read_sequences
from tests.harness import assert_tells
from tests.preproc.programs import called
from tests.preproc.ratings.oracle import decode

HEADER = ["userId", "movieId", "rating", "timestamp"]
ROWS = [[str(user), str(7 - time), "4.0", str(time)] for user in range(4) for time in range(5)]
HISTORIES = {str(user): ["7", "6", "5", "4", "3"] for user in range(4)}


def lines(*rows, separator: str = ",", end: str = "\n") -> bytes:
    return "".join(separator.join(row) + end for row in rows).encode()


def of(*columns: int, rows=ROWS):
    """Returns some columns of rows."""
    return [[row[column] for column in columns] for row in rows]


def parquet() -> bytes:
    text = io.BytesIO()
    columns = list(zip(*ROWS, strict=True))
    numbers = [[*map(int, columns[0])], [*map(int, columns[1])], [*map(int, columns[3])]]
    pq.write_table(pa.table(numbers, names=["user_id", "item_id", "timestamp"]), text)
    return text.getvalue()


REVIEWS = [
    {"rating": float(r), "text": "a\nb", "parent_asin": i, "user_id": u, "timestamp": int(t)}
    for u, i, r, t in ROWS
]
STEAM = [f"{{u'username': u'{u}', u'hours': {t}, u'product_id': u'{i}'}}" for u, i, _, t in ROWS]
TYPED = ["user_id:token", "item_id:token", "rating:float", "timestamp:float"]
TABLE = [HEADER, *ROWS]
ALL_NAMED = "--columns user=userId,item=movieId,rating=rating,timestamp=timestamp$"
DATES = ["01.01.1970", "1970-01-01 00:00:01 UTC", "1970-01-01T00:00:02Z"]
DATES += ["1970-01-01T01:00:03+01:00"]
DATED = [[*row[:3], (*DATES, "4.0E+00")[int(row[3])]] for row in ROWS]
FORMS = {  # command, content, the refusals one after the other
    "nanoseconds": (
        "movielens",
        lines(HEADER, *([*row[:3], f"171452164985312345{row[3]}"] for row in ROWS)),
        [],
    ),
    "dates": ("movielens", lines(HEADER, *DATED), []),
    "swapped": ("movielens", lines(*of(1, 0, 2, 3, rows=TABLE)), [ALL_NAMED]),
    "no time": ("amazon", lines(*of(0, 1, rows=TABLE)), ["user=userId,item=movieId$"]),
    "index": ("movielens", lines(*of(4, 0, 1, 2, 3, rows=[[*r, ""] for r in TABLE])), [ALL_NAMED]),
    "comma at the end": ("movielens", lines(*TABLE, end=",\n"), [ALL_NAMED]),
    "tabs": ("movielens", lines(*TABLE, separator="\t"), []),
    "packed tabs": (
        "amazon",
        gzip.compress(lines(TYPED, *ROWS, separator="\t")),
        ["user=user_id:token,item=item_id:token,rating=rating:float"],
    ),
    "semicolons": (
        "movielens",
        lines(['"User-ID"', '"ISBN"'], *([f'"{u}"', f'"{i}"'] for u, i, *_ in ROWS), separator=";"),
        ["user=User-ID,item=ISBN$"],
    ),
    "bars": ("movielens", lines(*TABLE, separator="|"), []),
    "other columns": (
        "movielens",
        lines(*([user, item, f"2145{time}", time] for user, item, _, time in ROWS)),
        ["rating '21450'(.|\n)*cat .* > "],
    ),
    "tabs and no header": (
        "movielens",
        lines(*of(0, 1, 2, rows=ROWS), separator="\t"),
        ["(.|\n)*cat .* > "],
    ),
    "CR": ("movielens", lines(*TABLE, end="\r"), []),
    "UTF-16": ("movielens", lines(*TABLE).decode().encode("utf-16"), []),
    "parquet": ("amazon", parquet(), ["user=user_id,item=item_id"]),
    "keys": (
        "amazon",
        lines(*([json.dumps(review)] for review in REVIEWS)),
        [],
    ),
    "other keys": (
        "amazon",
        lines(*([json.dumps({"who": u, "what": i, "at": int(t)})] for u, i, _, t in ROWS)),
        ["who, what, at(.|\n)*--columns"],
    ),
    "dictionaries": (
        "amazon",
        lines(*([row] for row in STEAM)),
        ["user=username,item=product_id"],
    ),
}

NAMES = {"other keys": "user=who,item=what,timestamp=at"}
"""What a user knows."""


@pytest.mark.parametrize("form", FORMS)
def test_the_remedies_of_refusals_lead_to_a_dataset(tmp_path, form):
    command, content, refusals = FORMS[form]
    source, flags = tmp_path / "my log.x", ["--min_item_count=0", "--min_user_count=3"]
    source.write_bytes(content)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for refusal in refusals:
        arguments = (f"--input={source}", f"--output={tmp_path / 'made'}", *flags)
        error = called(command, *arguments, status=2)
        assert re.search(refusal, error.strip()), error
        if shell := re.search(r"\n  (z?cat .*)\n", error):
            subprocess.run(shell[1], shell=True, check=True, env={"PATH": path})
            source = Path(shlex.split(shell[1])[-1])
        if columns := re.search(r"--columns (\S+)$", error.strip()):
            flags.append(
                "--columns="
                + columns[1].replace("user=NAME,item=NAME", NAMES.get(form, "user=c1,item=c2"))
            )
    called(command, f"--input={source}", f"--output={tmp_path / 'made'}", *flags)
    assert decode(tmp_path / "made")[0] == HISTORIES


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_user_or_item_that_is_nothing_is_no_id(tmp_path, form):
    """The first object has a null too; 4 NaN users and one null item."""
    rows = [{"u": float(u), "i": f"film {i}", "t": int(t)} for u, i, _, t in ROWS]
    rows += [{"u": float("nan"), "i": "film 7", "t": n} for n in range(4)]
    rows.insert(0, {"u": 1.0, "i": None, "t": 9})
    source = tmp_path / f"log.{form}"
    if form == "json":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), source)
    call = (f"--input={source}", f"--output={tmp_path / 'made'}", "--columns=user=u,item=i")
    error = called("movielens", *call, status=3)
    assert_tells(error, str(source), "line 1" if form == "json" else "row 1", "item ''")
    called("movielens", *call, "--max_bad_fraction=0.5")
    assert len(decode(tmp_path / "made")[0]) == 4
    if form == "json":
        source.write_text("".join(json.dumps(row | {"i": "a\nb"}) + "\n" for row in rows))
        flags = ("--id_type=string", "--overwrite")
        assert_tells(called("movielens", *call, *flags, status=3), "line 1", r"item 'a\nb'")
        source.write_text(json.dumps(rows, indent=1))
        assert "jq -c '.[]' log.json" in called("movielens", *call, "--overwrite", status=2)


def test_times_that_are_no_seconds_are_told(tmp_path):
    source = tmp_path / "log.csv"
    source.write_bytes(lines(HEADER, *([*row[:3], f"171452164985{row[3]}"] for row in ROWS)))
    call = (f"--input={source}", f"--output={tmp_path / 'made'}", "--progress=auto")
    said = called("movielens", *call, "--min_item_count=0")
    assert_tells(said, "1714521649850", "1714521649854", "1970")
    assert decode(tmp_path / "made")[0] == HISTORIES


@pytest.mark.parametrize("rating", ["3007", "-1"])
def test_what_is_no_rating_can_be_left_out(tmp_path, rating):
    source = tmp_path / "plays.csv"
    source.write_bytes(lines(["user", "artist", "plays"], *([u, i, rating] for u, i, *_ in ROWS)))
    call = (f"--input={source}", f"--output={tmp_path / 'made'}")
    error = called("movielens", *call, "--columns=user=user,item=artist,rating=plays", status=3)
    assert_tells(error, f"rating '{rating}'", "--columns")
    assert "--max_bad_fraction" not in error
    called("movielens", *call, f"--columns={error.strip().rpartition('--columns ')[2]}")
    assert decode(tmp_path / "made")[0] == HISTORIES


@pytest.mark.parametrize("form", ["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
@pytest.mark.parametrize("separator", [",", ";", "::"])
def test_dates_of_digits_are_dates(tmp_path, form, separator):
    """Not seconds of August 1970; what is none is a bad row."""
    moments = [datetime(2024, 2, 27 + n // 3, n, 15 * n, n, tzinfo=UTC) for n in range(2)]
    moments += [datetime(2024, 2, 29, tzinfo=UTC), datetime(2024, 3, 1, 23, 59, 59, tzinfo=UTC)]
    rows = [
        [str(user), str(9 - n), "4", moment.strftime(form)]
        for user in range(4)
        for n, moment in enumerate(moments)
    ]
    bad = ["20230229", "1709251199", "0", "20241301", "20240230091500"]
    rows += [["0", "3", "4", time] for time in bad for _ in range(30)]
    header = [] if separator == "::" else [HEADER]
    source = tmp_path / "log"
    source.write_bytes(lines(*header, *rows[:-149], rows[-1], separator=separator))
    flags = (f"--input={source}", f"--output={tmp_path / 'made'}", "--min_user_count=3")
    flags = (*flags, "--split=temporal:0.7", "--progress=none")
    assert "(timestamp)" in called("movielens", *flags, status=3)
    source.write_bytes(lines(*header, *rows[:16] * 20, *rows[16:], separator=separator))
    called("movielens", *flags, "--max_bad_fraction=0.5")
    assert Manifest.load(tmp_path / "made").rejected == {"timestamp": 150}
    last = datetime.strptime(moments[-1].strftime(form), form).replace(tzinfo=UTC)
    times = read_sequences(tmp_path / "made").timestamps
    assert {times.min(), times.max()} == {
        datetime.strptime(moments[0].strftime(form), form).replace(tzinfo=UTC).timestamp(),
        last.timestamp(),
    }


@pytest.mark.parametrize("name", ["orders.csv", "orders.csv.gz"])
def test_baskets_as_items_are_told_with_the_command_that_splits_them(tmp_path, name):
    rng = random.Random(2)
    orders = []
    for number in range(400):
        day = f"{1 + number % 28:02}.{1 + number // 28 % 12:02}.2023 09:46"
        items = [f"ART-{item:04}" for item in rng.sample(range(40), rng.randrange(1, 5))]
        orders.append([f"B{number}", f"K{number % 50}", day, items])
    table = [["order", "customer", "date", "item"]]
    table += [[*order, ", ".join(items)] for *order, items in orders]
    text = lines(*table, separator=";")
    source = tmp_path / name
    source.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    call = (f"--output={tmp_path / 'made'}", "--min_user_count=3", "--progress=none")
    columns = "--columns=user=customer,item=item,timestamp=date"
    told = called("amazon", f"--input={source}", *call, columns, "--min_item_count=0")
    command = re.search(r"\n  (z?cat .*)\n", told)[1]
    subprocess.run(command, shell=True, check=True)
    made = shlex.split(command)[-1]
    call = (*call, "--overwrite", columns, "--min_item_count=0")
    assert not called("amazon", f"--input={made}", *call)
    histories, items = decode(tmp_path / "made")
    assert {*items} == {item for *_, of in orders for item in of}
    assert sum(map(len, histories.values())) == sum(len(of) for *_, of in orders)


def test_texts_with_commas_are_no_baskets(tmp_path):
    """Names: what is first in one is not second in another."""
    rng = random.Random(2)
    names = [f"{last}, {first}" for last in ("Meyer", "Roth", "Berg") for first in ("Ada", "Bo")]
    table = [["user_id", "item_id"]]
    table += [[str(user), f'"{rng.choice(names)}"'] for user in range(50) for _ in range(4)]
    (tmp_path / "log.csv").write_bytes(lines(*table))
    call = (f"--input={tmp_path / 'log.csv'}", f"--output={tmp_path / 'made'}", "--progress=none")
    assert not called("amazon", *call, "--columns=user=user_id,item=item_id")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("fraction", [0, 1e-4])
def test_windows_1252_is_told_with_the_command_that_converts_it(tmp_path, pack, fraction):
    towns = ["Köln", "Ems", "Süd"]
    table = [["user_id", "item_id"]]
    table += [
        [towns[user % 3] + str(user), towns[n % 3] + str(n)] for user in range(9) for n in range(5)
    ]
    text = lines(*table).decode()
    source = tmp_path / ("log.csv.gz" if pack is not bytes else "log.csv")
    source.write_bytes(pack(text.encode("cp1252")))
    call = (f"--output={tmp_path / 'made'}", "--columns=user=user_id,item=item_id")
    call = (*call, f"--max_bad_fraction={fraction}", "--progress=none")
    status = 3 if fraction else 2
    error = called("amazon", f"--input={source}", *call, status=status)
    assert "line 2" in error
    assert "max_bad_fraction" not in error
    command = re.search(r"\n  (.*iconv .*)\n", error)[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    made = tmp_path / shlex.split(command)[-1]
    assert made.read_text() == text
    called("amazon", f"--input={made}", *call)


def test_a_few_rows_of_another_encoding_are_bad_rows(tmp_path):
    rows = [[f"Köln{user}", f"Süd{n}"] for user in range(9) for n in range(5)]
    text = lines(["user_id", "item_id"], *rows, ["Köln0", "Süd9"]).replace(
        b"S\xc3\xbcd9", b"S\xfcd9"
    )
    (tmp_path / "log.csv").write_bytes(text)
    call = (f"--input={tmp_path / 'log.csv'}", f"--output={tmp_path / 'made'}")
    call = (*call, "--columns=user=user_id,item=item_id", "--progress=none")
    assert "iconv" not in called("amazon", *call, status=3)
    called("amazon", *call, "--max_bad_fraction=0.1")


def test_decimal_commas_of_ratings_are_told(tmp_path):
    rows = [[u, i, "4,5", t] for u, i, _, t in ROWS]
    (tmp_path / "log.csv").write_bytes(lines(HEADER, *rows, separator=";"))
    call = (f"--input={tmp_path / 'log.csv'}", f"--output={tmp_path / 'made'}")
    assert "docs/own_clicks.md" in called("movielens", *call, status=3)


@pytest.mark.parametrize("end", ["\n", "\n\n", " \n"])
@pytest.mark.parametrize("form", ["tabs", "objects"])
def test_blank_lines_at_the_end_of_a_converted_file_are_no_rows(tmp_path, form, end):
    text = "\n".join("\t".join(row) for row in TABLE)
    if form == "objects":
        text = "\n".join(json.dumps(dict(zip(HEADER, row, strict=True))) for row in ROWS)
    (tmp_path / "log").write_text(text + "\n" + end)
    words = (f"--input={tmp_path / 'log'}", f"--output={tmp_path / 'made'}", "--min_item_count=0")
    called("movielens", *words, ALL_NAMED.replace(" ", "=").removesuffix("$"))
    assert Manifest.load(tmp_path / "made").source_files[0]["rows"] == len(ROWS)


def test_utf16_that_is_cut_off_is_damaged(tmp_path):
    (tmp_path / "log").write_bytes("".join(lines(*TABLE).decode()).encode("utf-16")[:-1])
    words = (f"--input={tmp_path / 'log'}", f"--output={tmp_path / 'made'}", "--min_item_count=0")
    size = (tmp_path / "log").stat().st_size
    errors = called("movielens", *words, status=2)
    assert_tells(errors, str(tmp_path / "log"), "UTF-16", f"byte {size}")
