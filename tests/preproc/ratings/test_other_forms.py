# SPDX-License-Identifier: Apache-2.0
"""Files of other forms are read; what refusals advise, done as a user would, leads to a dataset."""

import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
        ["rating '21450' must be(.|\n)*has no header"],
    ),
    "tabs and no header": (
        "movielens",
        lines(*of(0, 1, 2, rows=ROWS), separator="\t"),
        ["3 fields, needed are 4(.|\n)*has no header"],
    ),
    "CR": ("movielens", lines(*TABLE, end="\r"), []),
    "UTF-16": ("movielens", lines(*TABLE).decode().encode("utf-16"), []),
    "parquet": ("amazon", parquet(), ["user=user_id,item=item_id"]),
    "keys": (
        "amazon",
        lines(*([json.dumps(review)] for review in REVIEWS)),
        ["unknown names: rating, text, parent_asin, (.|\n)*user=user_id,item=parent_asin"],
    ),
    "dictionaries": (
        "amazon",
        lines(*([row] for row in STEAM)),
        ["user=username,item=product_id"],
    ),
}


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
                "--columns=" + columns[1].replace("user=NAME,item=NAME", "user=c1,item=c2")
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
    where = "line 1" if form == "json" else "row 1"
    assert f"{source}, {where}: item '' must be 1 to" in called("movielens", *call, status=3)
    called("movielens", *call, "--bad_rows=quarantine", "--max_bad_fraction=0.5")
    assert len(decode(tmp_path / "made")[0]) == 4
    if form == "json":
        source.write_text("".join(json.dumps(row | {"i": "a\nb"}) + "\n" for row in rows))
        flags = ("--id_type=string", "--overwrite")
        assert "not printable UTF-8" in called("movielens", *call, *flags, status=3)
        source.write_text(json.dumps(rows, indent=1))
        said = called("movielens", *call, "--overwrite", status=2)
        assert "is one JSON array; write an object a line: jq -c '.[]' log.json" in said


def test_times_that_are_no_seconds_are_told(tmp_path):
    source = tmp_path / "log.csv"
    source.write_bytes(lines(HEADER, *([*row[:3], f"171452164985{row[3]}"] for row in ROWS)))
    call = (f"--input={source}", f"--output={tmp_path / 'made'}", "--progress=auto")
    told = "times from 1714521649850 to 1714521649854 are not seconds since 1970: the order of"
    assert told in called("movielens", *call, "--min_item_count=0")
    assert decode(tmp_path / "made")[0] == HISTORIES


@pytest.mark.parametrize("rating", ["3007", "-1"])
def test_what_is_no_rating_can_be_left_out(tmp_path, rating):
    source = tmp_path / "plays.csv"
    source.write_bytes(lines(["user", "artist", "plays"], *([u, i, rating] for u, i, *_ in ROWS)))
    call = (f"--input={source}", f"--output={tmp_path / 'made'}")
    error = called("movielens", *call, "--columns=user=user,item=artist,rating=plays", status=3)
    assert f"rating '{rating}' must be" in error
    assert "All rows are like this" in error
    assert "quarantine" not in error
    called("movielens", *call, f"--columns={error.strip().rpartition('--columns ')[2]}")
    assert decode(tmp_path / "made")[0] == HISTORIES
