# SPDX-License-Identifier: Apache-2.0
"""Tables of every Arrow type: parquet and frames give one dataset in each engine, or none."""

import datetime
import decimal
import functools
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from preproc.clicks.job import semantics_of_schema
from preproc.clicks.rules import ClicksSemantics
from tests.fuzz.target import Draws, Target
from tests.preproc.clicks.rows import outcome

_SCHEMA = {
    "label": {"column": "click"},
    "defaults": {"frequency_limit": 1},
    "missing": ["n/a"],
    "columns": [
        {"name": "note", "role": "categorical", "type": "string"},
        {"name": "item", "role": "categorical", "type": "int"},
        {"name": "code", "role": "categorical", "type": "hex", "buckets": 11},
        {"name": "age", "role": "numerical", "type": "int"},
        {"name": "price", "role": "numerical", "type": "float", "transform": "none"},
        {"name": "at", "role": "timestamp", "features": ["hour", "weekday"]},
        {"name": "tags", "role": "categorical_list", "type": "string", "separator": "|"},
        {"name": "sizes", "role": "categorical_list", "type": "int", "separator": "|"},
    ],
    "split": {"rows": [1, 0, -1]},
}
_NAMES = ("click", *(str(column["name"]) for column in _SCHEMA["columns"]))  # type: ignore[union-attr]
_DAY = datetime.date(2026, 2, 28)
_TIME = datetime.datetime(2026, 2, 28, 23, 59, 59, 999_999)
_NUMBERS = (0, 1, -1, 7, 127, 128, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.5, 7.0, 1e22, 3.5e38, 1e-320, float("nan"), float("inf"), 0.1, 16777217.0)
_TEXTS = (
    "",
    "a",
    "n/a",
    "1",
    "007",
    "ff",
    "1.5",
    "a|b",
    "é",
    "a\nb",
    "a\tb",
    '"',
    "\\N",
    "x" * 1025,
)
_ANY: tuple[tuple[pa.DataType, tuple[Any, ...]], ...] = (
    *((kind, _NUMBERS) for kind in (pa.int64(), pa.int32(), pa.int16(), pa.int8())),
    *((kind, _NUMBERS) for kind in (pa.uint64(), pa.uint32(), pa.uint8())),
    *((kind, _FLOATS) for kind in (pa.float64(), pa.float32())),
    *((kind, _TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    (pa.dictionary(pa.int8(), pa.string()), _TEXTS),
    (pa.binary(), (b"", b"a", b"\xff", b"1")),
    (pa.bool_(), (True, False)),
    (pa.null(), (None,)),
    (pa.date32(), (_DAY, datetime.date(1970, 1, 1), datetime.date(2199, 12, 31))),
    (
        pa.decimal128(20, 3),
        (decimal.Decimal("1.500"), decimal.Decimal(7), decimal.Decimal("-0.001")),
    ),
    *((pa.timestamp(unit), (_TIME.replace(microsecond=0),)) for unit in ("s", "ms")),
    *((pa.timestamp(unit), (_TIME, datetime.datetime(1969, 1, 1))) for unit in ("us", "ns")),
    (pa.timestamp("ms", "+05:30"), (_TIME.replace(microsecond=0),)),
    (pa.time32("s"), (datetime.time(1, 2, 3),)),
    (pa.duration("s"), (datetime.timedelta(1),)),
    (pa.list_(pa.string()), ([], ["a"], ["a", "b"], ["a|b"], [""], [None])),
    (pa.list_(pa.int64()), ([], [1], [1, -(2**63)], [None])),
    (pa.large_list(pa.float64()), ([], [1.0], [0.5])),
    (pa.list_(pa.list_(pa.int8())), ([], [[1]])),
    (pa.struct([("x", pa.int8())]), ({"x": 1},)),
)
_USUAL = {"click": 0, "note": 9, "item": 0, "code": 9, "age": 0, "price": 7, "at": 19}
"""Place in `_ANY` of a type that fits the column."""


@functools.cache
def _semantics() -> tuple[str, ClicksSemantics]:
    text = yaml.safe_dump(_SCHEMA)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schema.yaml")
        path.write_text(text)
        return text, semantics_of_schema(path, {})


def _column(draws: Draws, name: str, rows: int, *, is_odd: bool) -> pa.Array:
    usual = _USUAL.get(name, 23 if name == "tags" else 24)
    kind, values = draws.pick(_ANY) if is_odd else _ANY[usual]
    if name == "click" and kind == pa.int64():
        values = (0, 1)
    chosen = []
    for _ in range(rows):
        value = None if draws.below(8) == 1 else draws.pick(values)
        try:
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError):  # a number that the type does not hold
            value = values[0]
        chosen.append(value)
    return pa.array(chosen, kind)


def _outcome(folder: Path, source: Path, engine: str) -> str:
    output = folder / f"{engine} of {source.parent.name}"
    _, semantics = _semantics()
    told = outcome(source, output, engine, semantics=semantics, schema=folder / "schema.yaml")
    return told.replace(str(source.parent), "")


def tables(folder: Path, data: bytes) -> None:
    """Prepares a table by both engines, and the same table as frames."""
    draws = Draws(data)
    rows = 5 + draws.below(4)
    odd = {draws.pick(_NAMES) for _ in draws.some(2)}
    table = pa.table({name: _column(draws, name, rows, is_odd=name in odd) for name in _NAMES})
    if draws.below(8) == 1:
        table = table.remove_column(draws.below(table.num_columns))
    (folder / "schema.yaml").write_text(_semantics()[0])
    sources = [folder / kind / "log" for kind in ("parquet", "frames")]
    for source in sources:
        source.parent.mkdir()
    size = 1 + draws.below(rows)
    try:
        pq.write_table(table, sources[0], row_group_size=size)
    except pa.ArrowException:  # parquet has no such type
        return
    frames = pq.read_table(sources[0])  # parquet changes some types, such as that of seconds
    with pa.ipc.new_stream(str(sources[1]), frames.schema) as writer:
        writer.write_table(frames, size)
    expected = _outcome(folder, sources[0], "reference")
    assert _outcome(folder, sources[0], "native") == expected
    assert _outcome(folder, sources[1], "native") == expected


TARGETS = (Target(tables),)
