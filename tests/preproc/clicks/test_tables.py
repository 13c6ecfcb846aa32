# SPDX-License-Identifier: Apache-2.0
"""Tables (parquet, frames): what a cell holds stays in its row and its column."""

import csv
import dataclasses
import datetime
import io
import random
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from preproc.clicks.applied import dictionaries_of_dataset
from preproc.clicks.serving.feature_file import write_feature_file
from preproc.clicks.serving.line_transform import LineTransform
from recsys.errors import UserError
from recsys_recipes import clicks
from tests.harness import assert_tells, refusal
from tests.preproc.clicks.schema_log import columns_of, prepare
from tests.tools import needs

QUIET = {"progress": "none"}
NASTY = ["a\nb", "q\n1,f,5.5,z", "a|b", "a,b", 'a"b', "\\N", "\\", "a\\nb", "\t", "\r", "x\r\n"]
NASTY += ["\0", "a\0b", "größe\x85", " a ", "|", "\x1f", "'", "null", "nan", '"', "😀\n😀"]
TEXT = st.one_of(st.sampled_from(NASTY), st.text('ab|,"\\\t\r\n\0 é', max_size=5))
UTC = datetime.UTC
BERLIN = datetime.timezone(datetime.timedelta(hours=1))

SCHEMA = {
    "label": {"column": "click"},
    "defaults": {"frequency_limit": 1, "count": "all"},
    "columns": [
        {"name": "note", "role": "categorical", "type": "string", "missing": ["n/a"]},
        {"name": "age", "role": "numerical", "type": "int"},
        {"name": "at", "role": "timestamp", "features": ["hour", "weekday"], "time_zone": "+01:00"},
        {"name": "tags", "role": "categorical_list", "type": "string", "separator": "|"},
        {"name": "price", "role": "numerical", "type": "float", "transform": "none"},
        {"name": "unread", "role": "ignored"},
        {"name": "item", "role": "categorical", "type": "int"},
        {"name": "user", "role": "ignored", "group": True},
        {"name": "code", "role": "categorical", "type": "hex", "buckets": 11},
        {"name": "page", "role": "categorical", "type": "string", "buckets": 50},
        {"name": "sizes", "role": "categorical_list", "type": "int", "max_length": 3},
        {
            **{"name": "seen", "role": "categorical_list", "type": "string", "separator": ";"},
            "weight_separator": ":",
        },
    ],
    "split": {"random": {"fractions": [0.6, 0.2, 0.2], "seed": 7}},
}
NAMES = ["click", *(column["name"] for column in SCHEMA["columns"])]


@dataclasses.dataclass(frozen=True)
class Row:
    """Values of a row; None where one is missing."""

    click: bool
    note: str | None
    age: int | None
    at: datetime.datetime | None
    tags: list[str]
    price: float | None
    unread: str
    item: int | None
    user: int | None
    code: int | None
    page: str | None
    sizes: list[int]
    seen: list[tuple[str, float]]


def maybe(values):
    return st.one_of(st.none(), values)


def rows(text=TEXT):
    """Rows in which no text is that of a missing one, and no element the empty one."""
    some = text.map(lambda t: t or "x")
    no_bar = text.map(lambda t: t.replace("|", "/").strip() or "x")
    no_colon = text.map(lambda t: t.replace(";", "/").strip() or "x")
    return st.builds(
        Row,
        click=st.booleans(),
        note=maybe(some),
        age=maybe(st.integers(-(2**31), 2**31 - 1)),
        at=maybe(st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2199, 1, 1))),
        tags=st.lists(no_bar, max_size=4),
        price=maybe(st.floats(-1e30, 1e30)),
        unread=text,
        item=maybe(st.integers(-(2**53), 2**53)),
        user=maybe(st.integers(0, 5)),
        code=maybe(st.integers(0, 2**32 - 1)),
        page=maybe(some),
        sizes=st.lists(st.integers(0, 9), max_size=5),
        seen=st.lists(st.tuples(no_colon, st.integers(1, 4).map(float)), max_size=2),
    )


def csv_of(table: list[Row], rng: random.Random) -> bytes:
    """Writes csv with columns in any order, numbers in several spellings and odd quotes."""
    names = rng.sample(NAMES, len(NAMES))

    def spelled(name: str, value: object) -> str:
        if name == "click":
            return str(int(bool(value)))
        if value is None:
            return rng.choice(["", "n/a"]) if name == "note" else ""
        if name in ("item", "user"):
            return rng.choice([str(value), f"{value}.0", f"{value}.00"])
        if name == "at":
            return rng.choice(
                [
                    f"{value.replace(tzinfo=BERLIN).isoformat()}",
                    value.replace(tzinfo=BERLIN).astimezone(UTC).isoformat(" "),
                    value.isoformat(" "),
                ]
            )
        if name == "price":
            return rng.choice([repr(value), f"{value!r}".replace("e", "E"), f"{value:.25e}"])
        if name == "code":
            return rng.choice([f"{value:x}", f"{value:08X}"])
        if name in ("tags", "sizes"):
            return "|".join(map(str, value))
        if name == "seen":
            return ";".join(f"{key}:{weight}" for key, weight in value)
        return str(value)

    text = io.StringIO(newline="")
    for row in [None, *table]:
        cells = names if row is None else [spelled(n, getattr(row, n)) for n in names]
        quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        csv.writer(text, lineterminator=rng.choice(["\n", "\r\n"]), quoting=quoting).writerow(cells)
    return text.getvalue().encode()


def table_of(table: list[Row], rng: random.Random) -> pa.Table:
    """Makes a table of the rows, with columns of types drawn at random and one that none reads."""

    def column(name: str) -> pa.Array:
        values = [getattr(row, name) for row in table]
        if name == "click":
            kinds = [pa.bool_(), pa.int8(), pa.float64()]
            return pa.array(values, pa.bool_()).cast(rng.choice(kinds))
        if name in ("note", "page", "unread"):
            kind = rng.choice(["string", "large_string", "binary", "string_view", "dictionary"])
            texts = pa.array(values, pa.string())
            if kind == "dictionary":
                return texts.dictionary_encode()
            return texts.cast(getattr(pa, kind)())
        if name == "age" and rng.random() < 0.5:
            decimals = [None if v is None else Decimal(v) for v in values]
            return pa.array(decimals, pa.decimal128(14, 2))
        if name in ("age", "item", "user"):
            kind = rng.choice([pa.int64(), pa.float64(), pa.string()])
            return pa.array(values, pa.int64()).cast(kind)
        if name == "at":
            zone = rng.choice([None, "Europe/Paris", "UTC"])
            if zone is not None:
                values = [v and v.replace(tzinfo=BERLIN) for v in values]
            times = pa.array(values, pa.timestamp("us", zone))
            return rng.choice([times, times.dictionary_encode()])
        if name == "price":
            numbers = [rng.choice([None, float("nan")]) if v is None else v for v in values]
            return pa.array(numbers, pa.float64())
        if name == "code":
            return pa.array([None if v is None else f"{v:x}" for v in values], pa.string())
        if name == "seen":
            texts = [[f"{key}:{weight}" for key, weight in v] for v in values]
            return pa.array(texts, pa.list_(pa.string()))
        kind = pa.string() if name == "tags" else rng.choice([pa.int64(), pa.float32()])
        lists = [v or rng.choice([v, None]) for v in values]
        return pa.array(lists, rng.choice([pa.list_, pa.large_list])(kind))

    names = rng.sample(NAMES, len(NAMES))
    made = {name: column(name) for name in names}
    # Nobody reads them, so that they may be of any type.
    others = {"deep": [{"a": [{"b": 1}]}] * len(table), "__index_level_0__": [7] * len(table)}
    return pa.table(made | others)


def contents(dataset: Path) -> dict[str, bytes]:
    """Returns the columns and the dictionaries of a dataset."""
    files = (path for path in dataset.rglob("*") if path.suffix in (".bin", ".yaml"))
    return {str(path.relative_to(dataset)): path.read_bytes() for path in files}


def schema_file(folder: Path, **changes: object) -> Path:
    path = folder / "schema.yaml"
    path.write_text(yaml.safe_dump(SCHEMA | changes))
    return path


SLOW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@needs("compiled Criteo kernel")
@SLOW
@given(st.lists(rows(), min_size=1, max_size=25), st.integers(0, 2**32))
def test_parquet_and_frames_give_the_bytes_of_the_reference(tmp_path_factory, table, seed):
    """Also group and split of each row, whatever line ends, delimiters and zeros its cells hold."""
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("t")
    schema = schema_file(folder)
    parquet.write_table(table_of(table, rng), folder / "log.parquet", row_group_size=7)
    wanted = prepare(folder / "log.parquet", schema, folder / "wanted", engine="reference")
    assert sum(wanted.rows.values()) == len(table)
    made = contents(folder / "wanted")
    prepare(folder / "log.parquet", schema, folder / "native", engine="native")
    assert contents(folder / "native") == made
    frame = table_of(table, rng)
    clicks.prepare(frame, folder / "frame", schema=schema, shuffle_seed="none", **QUIET)
    assert contents(folder / "frame") == made
    notes = Counter(row.note.encode() for row in table if row.note is not None)
    (keys, *_) = dictionaries_of_dataset(folder / "frame").load()
    assert Counter(keys) == Counter(notes.keys())


@needs("compiled Criteo kernel")
@SLOW
@given(
    st.lists(rows(TEXT.map(lambda t: t.replace("\n", "_"))), min_size=1, max_size=25),
    st.integers(0, 2**32),
)
def test_csv_and_tables_give_one_dataset(tmp_path_factory, table, seed):
    """Where csv can hold the rows; the hash of a row that splits it is one, too."""
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("t")
    schema = schema_file(folder)
    (folder / "log.csv").write_bytes(csv_of(table, rng))
    prepare(folder / "log.csv", schema, folder / "csv", engine="native")
    made = contents(folder / "csv")
    prepare(folder / "log.csv", schema, folder / "reference", engine="reference")
    assert contents(folder / "reference") == made
    frame = table_of(table, rng)
    clicks.prepare(frame, folder / "frame", schema=schema, shuffle_seed="none", **QUIET)
    assert contents(folder / "frame") == made


LOG = {
    "label": {"column": "click"},
    "defaults": {"frequency_limit": 1},
    "columns": [
        {"name": "note", "role": "categorical", "type": "string"},
        {"name": "price", "role": "numerical", "type": "float"},
    ],
    "split": {"rows": [-1, 0, 0]},
}


def log_of(count: int) -> dict[str, list[object]]:
    rng = random.Random(count)
    return {
        "click": [rng.randrange(2) for _ in range(count)],
        "note": [rng.choice("xyz") for _ in range(count)],
        "price": [round(rng.uniform(1, 9), 2) for _ in range(count)],
    }


def labels(dataset: Path, split: str = "train") -> list[int]:
    return np.fromfile(dataset / split / "label.bin", np.uint8).tolist()


def write_log_schema(folder: Path, **changes: object) -> Path:
    path = folder / "log.yaml"
    path.write_text(yaml.safe_dump(LOG | changes))
    return path


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_line_end_in_a_cell_makes_no_row(tmp_path, engine):
    """The text reads like the rest of its row and one more row, of another label."""
    log = log_of(400)
    log["click"][7], log["note"][7] = 0, "q\n1,f,5.5,z"
    log["note"][90] = "\n"
    schema = write_log_schema(tmp_path)
    made = clicks.prepare(pa.table(log), tmp_path / "made", schema=schema, engine=engine, **QUIET)
    assert labels(made) == log["click"]
    notes = [*dictionaries_of_dataset(made).load()[0]]
    assert {b"q\n1,f,5.5,z", b"\n"} <= {*notes}
    reader = columns_of(made, "train")[1]
    ids = dict(zip(notes, range(1, 9), strict=False))
    assert reader.read(0, 400).categorical[0].tolist() == [ids[n.encode()] for n in log["note"]]


@needs("compiled Criteo kernel")
def test_predictions_name_the_row_of_the_table(tmp_path):
    """A row after one with a line end, and after one that is refused."""
    log, new = log_of(3000), log_of(500)
    schema = write_log_schema(tmp_path, split={"fractions": [0.8, 0.1, 0.1]})
    made = clicks.prepare(pa.table(log), tmp_path / "made", schema=schema, **QUIET)
    flags = {"preset": "criteo_sample", "max_steps": 3, "base_device": "cpu"}
    run = clicks.train(made, tmp_path / "run", **flags)
    del new["click"]
    new["note"][100], new["note"][200] = "a\nb\r\n", "x" * 1025
    new["price"] = list(map(str, new["price"]))
    parquet.write_table(pa.table(new), tmp_path / "new.parquet")
    flags = {"dictionaries": made, "unlabelled": True, "max_bad_fraction": 0.5}
    rows_of_new = clicks.prepare(tmp_path / "new.parquet", tmp_path / "new", **flags, **QUIET)
    with (rows_of_new / "quarantine.csv").open(newline="") as file:
        assert [row["line_number"] for row in csv.DictReader(file)] == ["202"]
    new["note"][200] = "y"
    answers = clicks.predict(pa.table(new), made, run)
    assert answers["line"].to_pylist() == list(range(2, 502))


@needs("compiled Criteo kernel")
def test_served_fields_have_the_ids_of_the_table(tmp_path):
    notes = [*NASTY, "größe"]
    log = {"click": [0, 1] * len(notes), "note": notes * 2, "price": [1.5] * 2 * len(notes)}
    schema = write_log_schema(tmp_path)
    made = clicks.prepare(pa.table(log), tmp_path / "made", schema=schema, **QUIET)
    write_feature_file(made, tmp_path / "features", "float32")
    with LineTransform(tmp_path / "features") as transform:
        served = transform.transform_fields([[note.encode(), b"1.5"] for note in notes])
    stored = columns_of(made, "train")[1].read(0, len(notes)).categorical[0]
    assert served.ids[:, 0].tolist() == stored.tolist()
    assert len({*stored.tolist()}) == len(notes)
    assert 0 not in stored


def damage(path: Path, name: str) -> None:
    """Overwrites a column of a parquet file."""
    group = parquet.ParquetFile(path).metadata.row_group(0)
    (column,) = (c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == name)
    offset = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)


@needs("compiled Criteo kernel")
def test_columns_without_use_are_not_read(tmp_path):
    """Damaged, of a type that is not read, or an index; a damaged one that is used is named."""
    log = log_of(50) | {
        "deep": [{"a": 1}] * 50,
        "__index_level_0__": [5] * 50,
        "text": ["a\n"] * 50,
    }
    path, schema = tmp_path / "log.parquet", write_log_schema(tmp_path)
    parquet.write_table(pa.table(log), path)
    damage(path, "text")
    flags = {"schema": schema, **QUIET}
    assert labels(clicks.prepare(path, tmp_path / "made", **flags)) == log["click"]
    damage(path, "price")
    with refusal("log.parquet", "price"):
        clicks.prepare(path, tmp_path / "other", **flags)


@needs("compiled Criteo kernel")
def test_the_index_of_a_frame_is_a_column_where_it_has_a_name(tmp_path):
    """As pandas gives a frame: one without a name is no column, also in a draft."""
    log = log_of(200)
    nameless = pa.table(log | {"__index_level_0__": list(range(200))})
    draft = clicks.infer(nameless, tmp_path / "draft.yaml").read_text()
    assert [column["name"] for column in yaml.safe_load(draft)["columns"]] == ["note", "price"]
    schema = write_log_schema(tmp_path)
    assert labels(clicks.prepare(nameless, tmp_path / "a", schema=schema, **QUIET)) == log["click"]
    named = pa.table({"click": log["click"], "price": log["price"], "note": log["note"]})
    named = named.replace_schema_metadata({"pandas": '{"index_columns": ["note"]}'})
    made = clicks.prepare(named, tmp_path / "b", schema=schema, **QUIET)
    assert contents(made) == contents(tmp_path / "a")


AT = datetime.datetime(2026, 3, 1, 23, 30)
VALUES = {  # values, type, the column of the schema -> the keys of the dictionary
    "dates": ([AT.date()], pa.date32(), {"type": "string"}, [b"2026-03-01"]),
    "times": ([AT], pa.timestamp("ns"), {"type": "string"}, [b"2026-03-01 23:30:00"]),
    "zone": ([AT], pa.timestamp("ms", "UTC"), {"type": "string"}, [b"2026-03-01 23:30:00Z"]),
    "truths": ([True, True, False], pa.bool_(), {"type": "string"}, [b"true", b"false"]),
    "truths as numbers": ([True, True, False], pa.bool_(), {"type": "int"}, [1, 0]),
    "whole floats": ([1e15, 2.0**40, None], pa.float64(), {"type": "int"}, [2**40, 10**15]),
    "floats": ([0.1], pa.float32(), {"type": "string"}, [b"0.1"]),
    "decimals": ([Decimal("7.00")], pa.decimal128(9, 2), {"type": "int"}, [7]),
    "binary": ([b"a\nb"], pa.binary(), {"type": "string"}, [b"a\nb"]),
    "nothing": ([None, ""], pa.string(), {"type": "string"}, []),
    "null": ([None], pa.null(), {"type": "string"}, []),
    "fixed size": ([b"a\n", b"a\n", None], pa.binary(2), {"type": "string"}, [b"a\n"]),
    "views": (["x" * 40, None, ""], pa.string_view(), {"type": "string"}, [b"x" * 40]),
    "seconds": ([AT], pa.timestamp("s"), {"type": "string"}, [b"2026-03-01 23:30:00"]),
    "fractions": (
        [AT, AT, AT.replace(microsecond=40), None],
        *(pa.timestamp("us"), {"type": "string"}),
        [b"2026-03-01 23:30:00", b"2026-03-01 23:30:00.00004"],
    ),
    "early": (
        [datetime.datetime(1969, 12, 31, 23, 59, 59, 500_000)],
        *(pa.timestamp("ms"), {"type": "string"}, [b"1969-12-31 23:59:59.5"]),
    ),
    "codes": (
        ["b", None, "", "a\tb", "b"],
        *(pa.dictionary(pa.uint8(), pa.large_string()), {"type": "string"}, [b"b", b"a\tb"]),
    ),
    "NaN and null": ([0.5, float("nan"), None], pa.float64(), {"type": "string"}, [b"0.5"]),
    "bars": ([["a|b", "c\nd"], [], None], pa.list_(pa.string()), "list", [b"a|b", b"c\nd"]),
    "long lists": ([[1.0, 2.0]], pa.large_list(pa.float64()), {"type": "int"}, [1, 2]),
}


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("form", VALUES)
def test_cells_are_read_by_their_types(tmp_path, form, engine):
    values, kind, column, keys = VALUES[form]
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    rule = {"type": "string"} if column == "list" else column
    role = {"name": "x", "role": "categorical_list" if is_list else "categorical"} | rule
    schema = write_log_schema(tmp_path, columns=[role])
    table = pa.table({"click": [1] * len(values), "x": pa.array(values, kind)})
    made = clicks.prepare(table, tmp_path / "made", schema=schema, engine=engine, **QUIET)
    assert list(dictionaries_of_dataset(made).load()[0]) == keys


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_columns_in_unequal_chunks(tmp_path, engine):
    """As tables that were joined have them; each chunk of a category may have its own codes."""
    log = log_of(300) | {"note": [f"n\n{i % 9}" if i % 7 else None for i in range(300)]}
    whole = pa.table(log)

    def cut(column: pa.Array, step: int, encode: bool) -> pa.ChunkedArray:
        parts = (column.slice(start, step) for start in range(0, len(column), step))
        return pa.chunked_array([part.dictionary_encode() if encode else part for part in parts])

    chunked = pa.table(
        {
            name: cut(whole.column(name).combine_chunks(), step, name == "note")
            for name, step in (("click", 300), ("note", 17), ("price", 41))
        }
    ).slice(3)
    schema = write_log_schema(tmp_path)
    made = {
        name: clicks.prepare(
            table, tmp_path / name, schema=schema, engine=engine, shuffle_seed="none", **QUIET
        )
        for name, table in (("whole", whole.slice(3)), ("chunked", chunked))
    }
    parquet.write_table(chunked, tmp_path / "log.parquet", row_group_size=50)
    prepare(tmp_path / "log.parquet", schema, tmp_path / "parquet", engine=engine)
    assert labels(made["whole"]) == log["click"][3:]
    assert contents(made["chunked"]) == contents(made["whole"])
    assert contents(tmp_path / "parquet") == contents(made["whole"])


@needs("compiled Criteo kernel")
@pytest.mark.parametrize(
    ("kind", "hours"), [(None, [23]), ("UTC", [0]), ("Europe/Berlin", [0])], ids=str
)
def test_times_of_a_table_need_no_format(tmp_path, kind, hours):
    """Those with a zone are instants; of others it is the zone of the schema."""
    column = {"name": "at", "role": "timestamp", "format": "%d.%m.%Y", "time_zone": "+01:00"}
    schema = write_log_schema(tmp_path, columns=[column | {"features": ["hour"]}])
    table = pa.table({"click": [1], "at": pa.array([AT], pa.timestamp("us", kind))})
    made = clicks.prepare(table, tmp_path / "made", schema=schema, **QUIET)
    assert list(dictionaries_of_dataset(made).load()[0]) == hours


@needs("compiled Criteo kernel")
@pytest.mark.parametrize(
    ("values", "role", "reason"),
    [
        ([["a", None]], {"role": "categorical_list", "type": "string"}, "list"),
        ([b"\xff"], {"role": "categorical", "type": "string"}, "encoding"),
        ([[b"a\xffb"]], {"role": "categorical_list", "type": "string"}, "encoding"),
        ([1e17], {"role": "categorical", "type": "int"}, "integer"),
        ([1.5], {"role": "numerical", "type": "int"}, "integer"),
        ([float("inf")], {"role": "numerical", "type": "float"}, "number"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused_with_its_row(tmp_path, values, role, reason):
    kind = pa.array(values).type
    good = {"list": ["a"], "binary": b"a", "double": 1.0}
    ok = next(value for name, value in good.items() if str(kind).startswith(name))
    category = {"name": "note", "role": "categorical", "type": "string"}
    schema = write_log_schema(tmp_path, columns=[{"name": "x", **role}, category])
    column = pa.array([ok] * 4 + values + [ok] * 4, kind)
    table = pa.table({"click": [1] * 9, "note": ["a"] * 9, "x": column})
    for engine in ("native", "reference"):
        output = tmp_path / engine
        flags = {"schema": schema, "engine": engine, "max_bad_fraction": 1}
        made = clicks.prepare(table, output, **flags, **QUIET)
        with (made / "quarantine.csv").open(newline="") as file:
            (row,) = csv.DictReader(file)
        assert (row["line_number"], row["reason"]) == ("6", reason)
        assert len(labels(made)) == 8


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_cell_longer_than_a_row_is_refused_with_row_and_column(tmp_path, engine, kind):
    columns = [{"name": n, "role": "categorical", "type": "string"} for n in ("x", "note")]
    schema = write_log_schema(tmp_path, columns=columns)
    long = pa.array(["a"] * 12_000 + ["b" * (1 << 21)] + ["a"] * 2).cast(kind)  # of two batches
    table = pa.table({"click": [1] * 12_003, "note": ["a"] * 12_003, "x": long})
    with pytest.raises(UserError) as refused:
        clicks.prepare(table, tmp_path / "made", schema=schema, engine=engine, **QUIET)
    assert_tells(str(refused.value), "row 12001", "column x")
    assert not (tmp_path / "made").exists()


class Sparse:
    """As a frame of pandas with sparse columns."""

    def __arrow_c_stream__(self, requested_schema=None):
        raise TypeError("Sparse pandas data (column x) not supported.")


@pytest.mark.parametrize(
    ("table", "facts", "fits_no_draft"),
    [
        (pa.table({}), [], True),
        (pa.table(log_of(3)).slice(0, 0), [], True),
        (pa.table(log_of(3)).drop_columns(["price"]), ["'price'"], False),
        (pa.table(log_of(3) | {"note": [["a"]] * 3}), ["note"], False),
        (pa.table(log_of(3) | {"note": [{"a": 1}] * 3}), ["note"], False),
        (Sparse(), ["x"], True),
    ],
)
def test_a_table_that_cannot_be_read_is_told_without_paths(tmp_path, table, facts, fits_no_draft):
    with pytest.raises(UserError) as caught:
        clicks.prepare(table, tmp_path / "x", schema=write_log_schema(tmp_path), **QUIET)
    errors = [str(caught.value).replace(str(tmp_path), "")]
    if fits_no_draft:
        with pytest.raises(UserError) as caught:
            clicks.infer(table, tmp_path / "draft.yaml")
        errors.append(str(caught.value))
    for error in errors:
        assert_tells(error, *facts)
        assert tempfile.gettempdir() not in error


SPREAD = {
    "label": {"column": "click"},
    "columns": [
        {"name": "site", "role": "categorical", "type": "string"},
        *({"name": name, "role": "ignored"} for name in ("id", "weight", "seen", "note")),
    ],
    "split": {"random": {"fractions": [0.6, 0.2, 0.2], "seed": 7}},
}


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_ignored_columns_tell_rows_apart_in_a_random_split(tmp_path, engine):
    """The rows say the same elsewhere; csv spells floats and truth values as pandas does."""
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SPREAD))
    rows = 1500
    ids = [*range(1000), *(10**15 + i for i in range(rows - 1000))]
    weights = [i / 8 for i in range(rows)]
    table = pa.table(
        {
            "click": pa.array([i % 2 for i in range(rows)]),
            "site": pa.array(["s"] * rows),
            "id": pa.array(ids).cast(pa.float64()),
            "weight": pa.array(weights),
            "seen": pa.array([i % 3 == 0 for i in range(rows)]),
            "note": pa.array([f"n,{i % 7}" for i in range(rows)]),
        }
    )
    lines = (
        f'{i % 2},s,{float(ids[i])!r},{weights[i]!r},{i % 3 == 0},"n,{i % 7}"\n'
        for i in range(rows)
    )
    (tmp_path / "log.csv").write_text("click,site,id,weight,seen,note\n" + "".join(lines))
    parquet.write_table(table, tmp_path / "log.parquet")
    made = [
        prepare(
            tmp_path / name,
            tmp_path / "schema.yaml",
            tmp_path / name.partition(".")[2],
            engine=engine,
        )
        for name in ("log.csv", "log.parquet")
    ]
    assert made[0].rows == made[1].rows
    assert contents(tmp_path / "csv") == contents(tmp_path / "parquet")
    fractions = {split: count / rows for split, count in made[0].rows.items()}
    assert fractions == pytest.approx({"train": 0.6, "validation": 0.2, "test": 0.2}, abs=0.04)


def of_days(*texts: str, zone: str | None = None) -> pa.Array:
    times = [datetime.datetime.fromisoformat(text) for text in texts]
    if zone is not None:
        times = [time.replace(tzinfo=UTC) for time in times]
    return pa.array(times, pa.timestamp("us", zone))


FORMS = {
    "float": (
        pa.array([1.5, 1e22, -0.0, np.nan, 2.0**53 + 2, -1e16, 1.2345678901234567e18, 1e7, 1e-5]),
        [
            *("1.5", "1e+22", "-0.0", "", "9007199254740994.0", "-1e+16", "1.2345678901234568e+18"),
            *("10000000.0", "1e-05"),
        ],
    ),
    "float beyond float32": (
        pa.array([np.inf, -np.inf, 1e300, 5e-324, 12345678901234567890.0]),
        ["inf", "-inf", "1e+300", "5e-324", "1.2345678901234567e+19"],
    ),
    "float32": (
        pa.array([0.1, 1e22, 2.0**24, 3e9], pa.float32()),
        ["0.1", "1e+22", "1.6777216e+07", "3e+09"],
    ),
    "whole": (
        pa.array([2**60 + 1, 2**60 + 2, None, -(2**63)], pa.int64()),
        ["1152921504606846977", "1152921504606846978", "", "-9223372036854775808"],
    ),
    "uint64": (pa.array([2**64 - 1, 2**63], pa.uint64()), [str(2**64 - 1), str(2**63)]),
    "truth": (pa.array([True, False, None]), ["True", "False", ""]),
    "decimal": (
        pa.array(map(Decimal, ["1.50", "5.00", "0.00", "-12345678901234567890.10"])),
        ["1.50", "5.00", "0.00", "-12345678901234567890.10"],
    ),
    "small decimal": (pa.array([Decimal("1.00E-8"), None]), ["1.00E-8", ""]),
    "day": (
        pa.array([datetime.date(2026, 3, 1), datetime.date(1955, 1, 31)]),
        [
            "2026-03-01",
            "1955-01-31",
        ],
    ),
    "midnight": (of_days("2026-03-01", "1955-01-31"), ["2026-03-01", "1955-01-31"]),
    "time": (
        of_days("2026-03-01T09:15:04", "2026-03-02T00:00:00.5", "1955-01-01T01:00"),
        ["2026-03-01 09:15:04.000", "2026-03-02 00:00:00.500", "1955-01-01 01:00:00.000"],
    ),
    "nanosecond": (
        pa.array([1772356504123456789, None], pa.timestamp("ns")),
        ["2026-03-01 09:15:04.123456789", ""],
    ),
    "instant": (
        of_days("2026-03-01T08:15:04", "2026-07-01T22:00:00.5", zone="Europe/Berlin"),
        ["2026-03-01 09:15:04.000+01:00", "2026-07-02 00:00:00.500+02:00"],
    ),
    "time of day": (
        pa.array([datetime.time(9, 15), datetime.time(9, 15, 4, 500000)], pa.time64("us")),
        ["09:15:00", "09:15:04.500000"],
    ),
    "text": (
        pa.array(["a", "nan", "", None, " x ", "1.50", "True", "12:3", "0000-01-01", "a,b"]),
        ["a", "nan", "", "", " x ", "1.50", "True", "12:3", "0000-01-01", '"a,b"'],
    ),
    "dictionary": (pa.array(["a", None, "b"]).dictionary_encode(), ["a", "", "b"]),
}
"""Values of an ignored column, and how pandas' `to_csv` writes them."""


@needs("compiled Criteo kernel")
@pytest.mark.parametrize("form", FORMS)
def test_an_ignored_value_splits_alike_however_a_program_writes_it(tmp_path, form):
    """Each value stands in several rows, by whose split the rows of a value can be told apart."""
    values, spelled = FORMS[form]
    count = 40 * len(values)
    numbers = [row % len(values) for row in range(count)]
    site = [f"s{row}" for row in range(count)]
    table = pa.table(
        {"click": [row % 2 for row in range(count)], "site": site, "x": values.take(numbers)}
    )
    schema = SPREAD | {"columns": [SPREAD["columns"][0], {"name": "x", "role": "ignored"}]}
    schema |= {"defaults": {"frequency_limit": 1, "count": "all"}}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    parquet.write_table(table, tmp_path / "table.parquet")
    arrow_csv.write_csv(table, tmp_path / "arrow.csv")
    lines = (f"{row % 2},{site[row]},{spelled[number]}\n" for row, number in enumerate(numbers))
    (tmp_path / "pandas.csv").write_text("click,site,x\n" + "".join(lines))
    made = []
    for name in ("table.parquet", "arrow.csv", "pandas.csv"):
        for engine in ("native", "reference"):
            output = tmp_path / f"{name}.{engine}"
            prepare(tmp_path / name, tmp_path / "schema.yaml", output, engine=engine)
            made.append(contents(output))
    assert all(each == made[0] for each in made)


@needs("compiled Criteo kernel")
def test_a_mark_of_an_ignored_column_hashes_like_nothing(tmp_path):
    column = {"name": "x", "role": "ignored", "missing": ["NA"]}
    schema = SPREAD | {"columns": [SPREAD["columns"][0], column]}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    rows = [{"click": i % 2, "site": "s", "x": None if i % 3 else i} for i in range(300)]
    table = pa.Table.from_pylist(rows)
    lines = (f"{r['click']},s,{'NA' if r['x'] is None else r['x']}\n" for r in rows)
    (tmp_path / "log.csv").write_text("click,site,x\n" + "".join(lines))
    flags = {"schema": tmp_path / "schema.yaml", "shuffle_seed": "none", **QUIET}
    wanted = contents(clicks.prepare(table, tmp_path / "frame", **flags))
    parquet.write_table(table, tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        for engine in ("native", "reference"):
            output = tmp_path / f"{name}.{engine}"
            clicks.prepare(tmp_path / name, output, engine=engine, **flags)
            assert contents(output) == wanted
