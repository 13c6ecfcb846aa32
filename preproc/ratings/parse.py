# SPDX-License-Identifier: Apache-2.0
"""Parses ratings: the grammar validates rows, Arrow reads the valid ones.

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
    JSON_KEYS,
    RATING_LIMIT,
    TIMESTAMP_LIMIT,
    TOKEN_ID,
    Column,
    RatingsFormat,
)

_IDS = pa.dictionary(pa.int32(), pa.string())
_COLUMN_TYPES: dict[Column, pa.DataType] = {
    "user": _IDS,
    "item": _IDS,
    "rating": pa.float64(),
    "timestamp": pa.int64(),
}
_JSON_SCHEMA = pa.schema(
    [
        (key, pa.string() if column in ("user", "item") else _COLUMN_TYPES[column])
        for key, column in JSON_KEYS.items()
    ]
)
_JSON_BLOCK_BYTES = 4 * 2**20  # longer than the longest allowed line


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


def parse_chunk(
    chunk: Chunk, layout: RatingsFormat, *, skip_header: bool
) -> tuple[Interactions, npt.NDArray[np.int64]]:
    """Returns a chunk's valid rows and the line numbers of others.

    Args:
        chunk: lines of a ratings file.
        layout: format of the lines.
        skip_header: skip the first line, a header.
    """
    good = chunk.matches(layout.grammar())
    bad = ~good
    if skip_header:
        good[0] = bad[0] = False
    if layout.is_json:
        table, invalid = _read_valid_objects(chunk, np.flatnonzero(good))
        bad[invalid] = True
        table = table.rename_columns(list(JSON_KEYS.values()))
    else:
        table = _read_fields(chunk.text_of(good), layout)

    def numbers(column: Column) -> npt.NDArray[np.generic] | None:
        return table.column(column).to_numpy() if column in table.column_names else None

    users, items = (table.column(c) for c in ("user", "item"))
    if layout.is_json:
        users, items = users.dictionary_encode(), items.dictionary_encode()
    return (
        Interactions(users, items, numbers("rating"), numbers("timestamp")),  # type: ignore[arg-type]
        np.flatnonzero(bad),
    )


def _read_fields(text: bytes, layout: RatingsFormat) -> pa.Table:
    types = {c: _COLUMN_TYPES[c] for c in layout.columns}
    if not text:
        return pa.table({c: pa.array([], t) for c, t in types.items()})
    # Arrow takes separators of one byte; with "::" every second field is empty, and not read.
    names: list[str] = []
    for column in layout.columns:
        names += [column, *(f"{column}{i}" for i in range(1, len(layout.separator)))]
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
            include_columns=list(layout.columns),
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _read_json(text: bytes) -> pa.Table:
    if not text:
        return _JSON_SCHEMA.empty_table()
    return pyarrow.json.read_json(
        pa.BufferReader(text),
        read_options=pyarrow.json.ReadOptions(block_size=_JSON_BLOCK_BYTES),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=_JSON_SCHEMA, unexpected_field_behavior="ignore"
        ),
    )


def _read_valid_objects(
    chunk: Chunk, candidates: npt.NDArray[np.int64]
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Returns the rows of valid lines and the numbers of others.

    Arrow rejects a text as a whole, so it is halved down to the lines at fault: whether a line is
    valid does not depend on its neighbours.
    """
    tables, invalid = [_JSON_SCHEMA.empty_table()], []
    pending = [candidates]
    while pending:
        lines = pending.pop()
        mask = np.zeros(chunk.num_lines, np.bool_)
        mask[lines] = True
        table = _read_objects(chunk.text_of(mask), len(lines))
        if table is not None:
            is_valid = _is_valid(table)
            tables.append(table if is_valid.all() else table.filter(pa.array(is_valid)))
            invalid += lines[~is_valid].tolist()
        elif len(lines) == 1:
            invalid.append(int(lines[0]))
        else:
            pending += [lines[len(lines) // 2 :], lines[: len(lines) // 2]]  # the first half next
    return pa.concat_tables(tables), np.array(invalid, np.int64)


def _read_objects(text: bytes, num_lines: int) -> pa.Table | None:
    """Reads one row a line, None if Arrow reads another number."""
    try:
        table = _read_json(text)
    except pa.ArrowInvalid:
        return None
    return table if len(table) == num_lines else None  # a line may have two objects


def _is_valid(table: pa.Table) -> BoolArray:
    """Returns a mask [rows] of the objects with all fields, in range."""
    valid = np.ones(len(table), np.bool_)
    for key, column in JSON_KEYS.items():
        values = table.column(key)
        if column in ("user", "item"):
            checked = pc.match_substring_regex(values, rf"\A{TOKEN_ID}\z")
        elif column == "rating":
            checked = pc.and_(pc.greater_equal(values, 0), pc.less(values, RATING_LIMIT))
        else:
            checked = pc.and_(
                pc.greater(values, -TIMESTAMP_LIMIT), pc.less(values, TIMESTAMP_LIMIT)
            )
        valid &= np.array(pc.fill_null(checked, False))
    return valid
