# SPDX-License-Identifier: Apache-2.0
"""Reads files of ratings: text by the kernel or the Python reference, JSON by Arrow and Python.

No JSON reader is trusted to reject malformed rows: each accepts some of them silently.
"""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from preproc.clicks.kernel.rating_rows import RatingReader, RatingRows
from preproc.clicks.kernel.shared_library import LineTooLongError, is_built
from preproc.clicks.schema.rating_fields import RATING_END, Rating, order_key, read_rating
from preproc.clicks.schema.row_format import RowFormat
from preproc.files.input_file import MAX_LINE_BYTES, InputFile, line_too_long, without_mark
from preproc.files.raw.blank_end import WHITESPACE, row_blocks
from preproc.files.text_chunks import BoolArray, Chunk, read_chunks
from preproc.ratings.format import TIMESTAMP_LIMIT, RatingsFormat

RATINGS_FILE = "a ratings file"
"""Noun for the messages about other files."""

_IDS = pa.dictionary(pa.int32(), pa.string())
_JSON_BLOCK_BYTES = 4 * 2**20  # longer than the longest allowed line
_FEW_LINES = 64
_ASCII_ID = r"[!#-+\--~]{1,128}"
_UTF8 = (
    r"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    r"|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
"""A character that is not ASCII, in bytes."""
_JSON_STRING = rf'"(?:[ !#-\[\]-\x7f]|\\["\\/bfnrtu]|{_UTF8})*"'
_JSON_TOKENS = rf"(?:[ \t\r:,\]}}0-9.eE+-]|true|false|null|{_JSON_STRING})*"
_PLAIN_JSON = rf"\{{(?:{_JSON_TOKENS}[\[{{]){{0,20}}{_JSON_TOKENS}\}}"
"""Objects that Arrow reads as `load_json` does, or not at all: it takes NaN, Inf, text of other
encodings and any depth."""


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


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows of consecutive lines of a file.

    Attributes:
        rows: the valid ones.
        rejected: of each other one its first byte, its line and its bytes.
        lines: the numbers of the first line and of that after the last.
        text_bytes: size of the lines.
    """

    rows: Interactions
    rejected: list[tuple[int, int, bytes]]
    lines: tuple[int, int]
    text_bytes: int


class _Reader(Protocol):
    def feed(self, text: bytes) -> None: ...
    def finish(self) -> None: ...
    def take(self) -> RatingRows: ...
    def close(self) -> None: ...


def pieces(file: InputFile, layout: RatingsFormat, chunk_bytes: int) -> Iterator[Piece]:
    """Yields all rows of a file, about `chunk_bytes` of text at a time.

    Raises:
        PreprocError: a line is longer than 1 MiB, or compressed data are damaged.
    """
    if layout.is_json:
        for chunk in read_chunks(file, chunk_bytes, RATINGS_FILE, WHITESPACE):
            rows, bad = parse_objects(chunk, layout)
            places = [(chunk.offset + int(chunk.starts[line]), line) for line in bad.tolist()]
            rejected = [(at, chunk.first_line + n, chunk.row(n)) for at, n in places]
            end = chunk.first_line + chunk.num_lines
            yield Piece(rows, rejected, (chunk.first_line, end), len(chunk.text))
        return
    reader: _Reader = RatingReader(layout.rows) if is_built() else ReferenceReader(layout.rows)
    line, held = 1, 0

    def piece() -> Piece:
        nonlocal line, held
        read, first, size = reader.take(), line, held
        line, held = read.lines + 1, 0
        users, items = (pa.chunked_array([ids], _IDS) for ids in (read.users, read.items))
        ratings = read.ratings if "rating" in layout.columns else None
        times = read.times if layout.has_timestamps else None
        rows = Interactions(users, items, ratings, times)
        return Piece(rows, read.rejected, (first, line), size)

    try:
        for block in row_blocks(file, WHITESPACE):
            reader.feed(block)
            held += len(block)
            if held >= chunk_bytes:
                yield piece()
        reader.finish()
        yield piece()
    except LineTooLongError as error:
        raise line_too_long(file.path, error.offset, RATINGS_FILE) from error
    finally:
        reader.close()


class ReferenceReader:
    """Reads ratings in Python, where the kernel is not built; see `RatingReader`."""

    def __init__(self, row_format: RowFormat) -> None:
        self._format = row_format
        self._rest, self._offset, self._line = b"", 0, 0
        self._begins, self._skips_line = True, row_format.has_header
        self._rows: list[Rating] = []
        self._rejected: list[tuple[int, int, bytes]] = []

    def feed(self, text: bytes) -> None:
        """Reads a block of text, which may end inside a row."""
        text = self._rest + text
        if self._begins and b"\n" in text:
            self._offset, blocks = without_mark(iter([text]))
            text, self._begins = b"".join(blocks), False
        *lines, self._rest = text.split(b"\n")
        for line in lines:
            self._read(line)
            self._offset += len(line) + 1
        if len(self._rest) > MAX_LINE_BYTES + 1:
            raise LineTooLongError("", self._offset)

    def _read(self, line: bytes) -> None:
        self._line += 1
        row = line.removesuffix(b"\r")
        if len(row) > MAX_LINE_BYTES:
            raise LineTooLongError("", self._offset)
        if self._skips_line:
            self._skips_line = False
            return
        read = read_rating(row, self._format)
        if isinstance(read, Rating):
            self._rows.append(read)
        else:
            self._rejected.append((self._offset, self._line, row))

    def finish(self) -> None:
        """Ends the text."""
        if self._rest:
            self.feed(b"\n")

    def take(self) -> RatingRows:
        """Returns what was read since the last call."""
        rows, rejected = self._rows, self._rejected
        self._rows, self._rejected = [], []
        keys = (order_key(t) if isinstance(t := row.time, float) else t or 0 for row in rows)
        return RatingRows(
            pa.array([row.user for row in rows], pa.string()).dictionary_encode(),
            pa.array([row.item for row in rows], pa.string()).dictionary_encode(),
            np.array([row.rating or 0.0 for row in rows], np.float64),
            np.array([*keys], np.int64),
            rejected,
            self._line,
        )

    def close(self) -> None:
        """Does nothing."""


def parse_objects(
    chunk: Chunk, layout: RatingsFormat
) -> tuple[Interactions, npt.NDArray[np.int64]]:
    """Returns a chunk's valid objects and the line numbers of others."""
    good = chunk.matches(_PLAIN_JSON)
    table, good = _read_valid_objects(chunk, layout, np.flatnonzero(good))
    others = np.flatnonzero(~good)
    read = [layout.read(chunk.row(int(line))) for line in others]
    is_valid = np.array([isinstance(values, Rating) for values in read], np.bool_)
    if is_valid.any():
        values = [row for row in read if isinstance(row, Rating)]
        table = pa.concat_tables([table, _table_of(values, layout)])
        lines = np.concatenate([np.flatnonzero(good), others[is_valid]])
        table = table.take(pa.array(np.argsort(lines)))
    users, items = (table.column(c).dictionary_encode() for c in ("user", "item"))
    names = [c for c in ("rating", "timestamp") if c in layout.columns]
    numbers = {name: table.column(name).to_numpy() for name in names}
    timestamps = numbers.get("timestamp")
    if layout.real_times and timestamps is not None:
        timestamps = _order_keys(timestamps)
    return Interactions(users, items, numbers.get("rating"), timestamps), others[~is_valid]


def _column_types(layout: RatingsFormat) -> dict[str, pa.DataType]:
    times = pa.float64() if layout.real_times else pa.int64()
    types = {"user": pa.string(), "item": pa.string(), "rating": pa.float64(), "timestamp": times}
    return {column: types[column] for column in layout.read_columns}


def _table_of(rows: list[Rating], layout: RatingsFormat) -> pa.Table:
    columns = {}
    for column, data_type in _column_types(layout).items():
        values = [getattr(row, "time" if column == "timestamp" else column) for row in rows]
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
    keys = {key: column for key, column in layout.keys.items() if column in types}
    schema = pa.schema([(key, types[column]) for key, column in keys.items()])
    tables, good = [schema.empty_table()], np.zeros(chunk.num_lines, np.bool_)
    pending = [candidates]
    while pending:
        lines = pending.pop()
        mask = np.zeros(chunk.num_lines, np.bool_)
        mask[lines] = True
        table = _read_objects(chunk.text_of(mask), len(lines), schema)
        if table is not None:
            is_valid = _is_valid(table, layout)
            tables.append(table if is_valid.all() else table.filter(pa.array(is_valid)))
            good[lines[is_valid]] = True
        elif len(lines) > _FEW_LINES:
            pending += [lines[len(lines) // 2 :], lines[: len(lines) // 2]]  # the first half next
    return pa.concat_tables(tables).rename_columns(list(types)), good


def _read_objects(text: bytes, num_lines: int, schema: pa.Schema) -> pa.Table | None:
    """Reads one row a line, None if Arrow reads another number."""
    try:
        table = _read_json(text, schema)
    except pa.ArrowInvalid:
        return None
    return table if len(table) == num_lines else None  # a line may have two objects


def _is_valid(table: pa.Table, layout: RatingsFormat) -> BoolArray:
    """Returns a mask [rows] of valid objects with ids of ASCII."""
    valid = np.ones(len(table), np.bool_)
    for key in table.column_names:
        values, column = table.column(key), layout.keys[key]
        if column in ("user", "item"):
            checked = pc.match_substring_regex(values, rf"\A{_ASCII_ID}\z")
        elif column == "rating":
            checked = pc.and_(pc.greater_equal(values, 0), pc.less(values, RATING_END))
        else:
            limit = values.type.to_pandas_dtype()(TIMESTAMP_LIMIT)
            checked = pc.and_(pc.greater(values, -limit), pc.less(values, limit))
        valid &= np.array(pc.fill_null(checked, False))
    return valid
