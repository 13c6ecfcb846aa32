# SPDX-License-Identifier: Apache-2.0
"""Ratings from tables (parquet, frames): by name and type, one row each."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from recsys_recipes import ratings
from tests.harness import assert_tells, refusal
from tests.preproc.programs import called
from tests.preproc.ratings.oracle import decode
from tests.preproc.ratings.test_other_forms import HISTORIES, ROWS

NAMED = "user=u,item=i,rating=r,timestamp=t"
SETTINGS = {"min_item_count": 0, "min_user_count": 3, "progress": "none"}


def columns(**changes: object) -> dict[str, object]:
    """Returns the columns of a table of ratings."""
    users, items, _, times = zip(*ROWS, strict=True)
    own = {"u": [*map(int, users)], "i": [*map(int, items)], "t": [*map(int, times)]}
    return own | {"r": [4.0] * len(ROWS)} | changes


def made(table, output, **settings):
    """Returns the histories of users, from parquet and as a table of Python."""
    settings = {"columns": NAMED} | settings | SETTINGS
    of_frame = decode(ratings.prepare(table, output / "frame", **settings))[0]
    pq.write_table(table, output / "log.parquet", row_group_size=7)
    of_file = decode(ratings.prepare(output / "log.parquet", output / "file", **settings))[0]
    assert of_file == of_frame
    return of_file


def test_columns_that_nobody_names_are_not_read(tmp_path):
    """Reviews of several lines and of 2 MiB, and a column that has no text at all."""
    reviews = ["one\ntwo", 'a "b", c', "x" * 2**21, None] * 5
    deep = [{"a": [1]}] * len(ROWS)
    table = pa.table({"text": reviews, "deep": deep, **columns(), "__index_level_0__": reviews})
    assert made(table, tmp_path) == HISTORIES


@pytest.mark.parametrize("order", [["userId", "movieId"], ["movieId", "userId"]])
def test_known_names_need_no_setting(tmp_path, order):
    own = columns()
    named = {"userId": own["u"], "movieId": own["i"]}
    rest = {"text": ["a\n"] * 20, "timestamp": own["t"], "rating": own["r"]}
    table = pa.table({**rest, **{name: named[name] for name in order}})
    assert made(table, tmp_path, columns="auto") == HISTORIES


TIMES = [datetime.datetime(2026, 3, 1, 12) + datetime.timedelta(hours=n) for n in range(5)] * 4
HALF = datetime.timedelta(milliseconds=500)
MOMENTS = {
    "dates": pa.array([datetime.date(2026, 3, 1 + n) for n in range(5)] * 4),
    "naive": pa.array(TIMES, pa.timestamp("ns")),
    "zone": pa.array(TIMES, pa.timestamp("us", "Europe/Berlin")).dictionary_encode(),
    "before 1970": pa.array([datetime.datetime(1969, 1, 1 + n) for n in range(5)] * 4),
    "late fraction": pa.array([*TIMES[:17], TIMES[16] + HALF, *TIMES[18:]], pa.timestamp("ms")),
    "floats": pa.array([1.7e9 + n for n in range(5)] * 4),
    "decimals": pa.array([Decimal(f"{n}.00") for n in range(5)] * 4),
}


@pytest.mark.parametrize("form", MOMENTS)
def test_times_go_by_their_type(tmp_path, form):
    assert made(pa.table(columns(t=MOMENTS[form])), tmp_path) == HISTORIES


def test_times_are_seconds_whatever_their_type(tmp_path):
    """The stored sequences are those of texts."""
    texts = [time.isoformat() for time in TIMES]
    at = {"texts": texts, "zone": MOMENTS["zone"], "naive": MOMENTS["naive"]}
    stored = {}
    for name, moments in at.items():
        table = pa.table(columns(t=moments))
        ratings.prepare(table, tmp_path / name, columns=NAMED, **SETTINGS)
        files = sorted((tmp_path / name).rglob("part-*.parquet"))
        stored[name] = [file.read_bytes() for file in files]
    assert stored["texts"] == stored["zone"] == stored["naive"]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_whole_floats_are_whole_numbers(tmp_path, kind):
    large = 10**15 if kind == pa.float64() else 2**23
    items = pa.array([large + item for item in columns()["i"]], pa.int64()).cast(kind)
    wanted = {user: [str(large + int(i)) for i in own] for user, own in HISTORIES.items()}
    assert made(pa.table(columns(i=items)), tmp_path) == wanted


@pytest.mark.parametrize("wrong", [1.5, 2.0**53 + 2, float("inf")])
@pytest.mark.parametrize("name", ["u", "i"])
def test_other_floats_are_no_ids(tmp_path, name, wrong):
    own = columns()
    own[name] = [*map(float, own[name][:12]), wrong, *map(float, own[name][13:])]
    with refusal("row 13", f"column {name}", wrong):
        ratings.prepare(pa.table(own), tmp_path / "made", columns=NAMED, **SETTINGS)


def test_a_missing_float_id_leaves_out_its_row(tmp_path):
    own = columns(u=[None, *map(float, columns()["u"][1:])])
    flags = {"columns": NAMED, **SETTINGS}
    with refusal("row 1", "user ''"):
        ratings.prepare(pa.table(own), tmp_path / "made", **flags)
    flags |= {"max_bad_fraction": 0.5}
    histories = decode(ratings.prepare(pa.table(own), tmp_path / "other", **flags))[0]
    assert histories == HISTORIES | {"0": HISTORIES["0"][1:]}


@pytest.mark.parametrize("text", ["a\n7,1,5.0,3", "\r\n", "b\0", "0\n0,1"])
def test_a_line_end_in_an_id_makes_no_row(tmp_path, text):
    users = [*map(str, columns()["u"]), text]
    own = columns(u=users, i=[*columns()["i"], 7], t=[*columns()["t"], 9], r=[4.0] * 21)
    flags = {"columns": NAMED, "id_type": "string", **SETTINGS}
    dataset = ratings.prepare(pa.table(own), tmp_path / "made", max_bad_fraction=0.5, **flags)
    assert decode(dataset)[0] == HISTORIES
    bad = (dataset / "quarantine.csv").read_text().splitlines()[1:]
    assert len(bad) == 1
    with refusal("row 21", "user"):
        ratings.prepare(pa.table(own), tmp_path / "x", **flags)


@pytest.mark.parametrize("command", ["movielens", "amazon"])
@pytest.mark.parametrize("form", ["{:.1f}", "{:.0e}"])
def test_a_csv_file_of_float_ids_is_refused(tmp_path, command, form):
    """As to_csv writes 5.0 and 1e+16; as texts they are taken."""
    own = columns()
    items = [form.format(10.0 ** (16 + item)) for item in own["i"]]
    pyarrow.csv.write_csv(pa.table(own | {"i": items}), tmp_path / "log.csv")
    call = [f"--input={tmp_path / 'log.csv'}", f"--output={tmp_path / 'made'}"]
    call += [f"--columns={NAMED}", "--min_user_count=3", "--min_item_count=0"]
    assert_tells(called(command, *call, status=2), "item", items[0], "Int64")
    if command == "movielens":
        called(command, *call, "--id_type=string")
        assert {*decode(tmp_path / "made")[0]["0"]} == {*items}


def test_a_table_without_the_columns_is_told(tmp_path):
    for table, settings, facts in (
        (pa.table(columns()), {}, ("columns", "user=NAME,item=NAME", "u, i, t, r")),
        (pa.table(columns()), {"columns": "user=u,item=x"}, ("columns", "'x'", "u, i, t, r")),
        (pa.table(columns(u=[{"a": 1}] * 20)), {"columns": NAMED}, ("column u", "int64")),
        (pa.table(columns(i=[[1]] * 20)), {"columns": NAMED}, ("column i", "int64")),
        (pa.table({}), {"columns": NAMED}, ()),
        (pa.table(columns()).slice(0, 0), {"columns": NAMED}, ()),
    ):
        with refusal(*facts):
            ratings.prepare(table, tmp_path / "made", **settings, **SETTINGS)
        assert not (tmp_path / "made").exists()
