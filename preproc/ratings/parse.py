# SPDX-License-Identifier: Apache-2.0
"""Parses ratings: plain rows by grammar and Arrow, others by Python.

No CSV or JSON reader is trusted to reject malformed rows: each accepts some of them silently.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from preproc.files.text_chunks import BoolArray, Chunk
from preproc.ratings.format import (
    ASCII_TOKEN_ID,
    IGNORED,
    JSON_KEYS,
    RATING_LIMIT,
    TIMESTAMP_LIMIT,
    Column,
    RatingsFormat,
    Values,
)

_IDS = pa.dictionary(pa.int32(), pa.string())
_JSON_BLOCK_BYTES = 4 * 2**20  # longer than the longest allowed line
_FEW_LINES = 64


def _column_types(layout: RatingsFormat) -> dict[Column, pa.DataType]:
    ids = pa.string() if layout.is_json else _IDS
    times = pa.float64() if layout.real_times else pa.int64()
    types = {"user": ids, "item": ids, "rating": pa.float64(), "timestamp": times}
    return {column: types[column] for column in layout.read_columns}


@dataclasses.dataclass(frozen=True, slots=True)
class Interactions:
    """The valid rows of a chunk, in file order.

    Attributes:
        users: [rows] raw ids, dictionary-encoded.
        items: [rows] raw ids, dictionary-encoded.
        ratings: [rows], None if the format has none.
        timestamps: [rows], None if the format has none.
    """

    users: pa.ChunkedArray
    items: pa.ChunkedArray
    ratings: npt.NDArray[np.float64] | None
    timestamps: npt.NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.users)

    def filter(self, mask: BoolArray) -> "Interactions":
        """Returns the rows that a mask [rows] selects."""
        users, items = (column.filter(pa.array(mask)) for column in (self.users, self.items))
        ratings = None if self.ratings is None else self.ratings[mask]
        times = None if self.timestamps is None else self.timestamps[mask]
        return Interactions(users, items, ratings, times)


def parse_chunk(
    chunk: Chunk, layout: RatingsFormat, *, skip_header: bool
) -> tuple[Interactions, npt.NDArray[np.int64]]:
    """Returns a chunk's valid rows and the line numbers of others."""
    good = chunk.matches(layout.grammar())
    if skip_header:
        good[0] = False
    if layout.is_json:
        table, good = _read_valid_objects(chunk, layout, np.flatnonzero(good))
    else:
        table = _read_fields(chunk.text_of(good), layout)
    others = np.flatnonzero(~good)[int(skip_header) :]
    read = [layout.read(chunk.row(line)) for line in others]
    is_valid = np.array([isinstance(values, Values) for values in read], np.bool_)
    if is_valid.any():
        values = [row for row in read if isinstance(row, Values)]
        table = pa.concat_tables([_without_dictionaries(table), _table_of(values, layout)])
        lines = np.concatenate([np.flatnonzero(good), others[is_valid]])
        table = table.take(pa.array(np.argsort(lines)))
    users, items = (_dictionary_of(table.column(c)) for c in ("user", "item"))
    numbers = {
        c: table.column(c).to_numpy() for c in layout.read_columns if c not in ("user", "item")
    }
    timestamps = numbers.get("timestamp")
    if layout.real_times and timestamps is not None:
        timestamps = _order_keys(timestamps)
    return Interactions(users, items, numbers.get("rating"), timestamps), others[~is_valid]


def _dictionary_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if column.type == _IDS else column.dictionary_encode()


def _without_dictionaries(table: pa.Table) -> pa.Table:
    types = [pa.string() if field.type == _IDS else field.type for field in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def _table_of(rows: list[Values], layout: RatingsFormat) -> pa.Table:
    columns = {}
    for column, data_type in _column_types(layout).items():
        values = [getattr(row, column) for row in rows]
        is_id = column in ("user", "item")
        as_numbers = None if is_id else np.array(values, data_type.to_pandas_dtype())
        columns[column] = pa.array(values, pa.string()) if is_id else pa.array(as_numbers)
    return pa.table(columns)


def _order_keys(times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Returns integers that are ordered as the floats are."""
    bits = (times + 0.0).view(np.int64)  # no negative zero
    return np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)


def times_of_keys(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Returns the floats behind the timestamps of a layout with `real_times`."""
    return np.where(keys < 0, keys ^ np.iinfo(np.int64).max, keys).view(np.float64)


def _read_fields(text: bytes, layout: RatingsFormat) -> pa.Table:
    types = _column_types(layout)
    if not text:
        return pa.table({c: pa.array([], t) for c, t in types.items()})
    # Arrow takes separators of one byte; with "::" every second field is empty, and not read.
    names: list[str] = []
    for number, column in enumerate(layout.columns):
        name = f"{column}{number}" if column == IGNORED else column
        names += [name, *(f"{column}{i}" for i in range(1, len(layout.separator)))]
    names = names[: len(names) - len(layout.separator) + 1]
    return pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(column_names=names),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=layout.separator[0],
            quote_char=False,
            double_quote=False,
            escape_char=False,
            ignore_empty_lines=False,
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=list(layout.read_columns),
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _read_json(text: bytes, schema: pa.Schema) -> pa.Table:
    if not text:
        return schema.empty_table()
    return pyarrow.json.read_json(
        pa.BufferReader(text),
        read_options=pyarrow.json.ReadOptions(block_size=_JSON_BLOCK_BYTES),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore"
        ),
    )


def _read_valid_objects(
    chunk: Chunk, layout: RatingsFormat, candidates: npt.NDArray[np.int64]
) -> tuple[pa.Table, BoolArray]:
    """Returns the rows that Arrow reads, and their mask [lines].

    Arrow rejects a text as a whole, so it is halved down to few lines around those at fault:
    whether a line is valid does not depend on its neighbours.
    """
    types = _column_types(layout)
    schema = pa.schema([(key, types[column]) for key, column in JSON_KEYS.items()])
    tables, good = [schema.empty_table()], np.zeros(chunk.num_lines, np.bool_)
    pending = [candidates]
    while pending:
        lines = pending.pop()
        mask = np.zeros(chunk.num_lines, np.bool_)
        mask[lines] = True
        table = _read_objects(chunk.text_of(mask), len(lines), schema)
        if table is not None:
            is_valid = _is_valid(table)
            tables.append(table if is_valid.all() else table.filter(pa.array(is_valid)))
            good[lines[is_valid]] = True
        elif len(lines) > _FEW_LINES:
            pending += [lines[len(lines) // 2 :], lines[: len(lines) // 2]]  # the first half next
    return pa.concat_tables(tables).rename_columns(list(JSON_KEYS.values())), good


def _read_objects(text: bytes, num_lines: int, schema: pa.Schema) -> pa.Table | None:
    """Reads one row a line, None if Arrow reads another number."""
    try:
        table = _read_json(text, schema)
    except pa.ArrowInvalid:
        return None
    return table if len(table) == num_lines else None  # a line may have two objects


def _is_valid(table: pa.Table) -> BoolArray:
    """Returns a mask [rows] of valid objects with ids of ASCII."""
    valid = np.ones(len(table), np.bool_)
    for key, column in JSON_KEYS.items():
        values = table.column(key)
        if column in ("user", "item"):
            checked = pc.match_substring_regex(values, rf"\A{ASCII_TOKEN_ID}\z")
        elif column == "rating":
            checked = pc.and_(pc.greater_equal(values, 0), pc.less(values, RATING_LIMIT))
        else:
            limit = values.type.to_pandas_dtype()(TIMESTAMP_LIMIT)
            checked = pc.and_(pc.greater(values, -limit), pc.less(values, limit))
        valid &= np.array(pc.fill_null(checked, False))
    return valid
