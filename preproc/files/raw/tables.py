# SPDX-License-Identifier: Apache-2.0
r"""Tables (parquet, and the Arrow streams that Python tables become), read by column and type.

Only the named columns are decoded. Their cells become texts according to their Arrow types: a
missing cell (null, NaN, NaT) is empty, a whole number as a float has no point, and times are ISO
8601, in UTC if they have a zone. Text readers then read the rows, so cells are escaped:

    header  the names of the columns, as a row
    row     its cells, separated by tabs, and a line feed
    cell    unchanged, unless it contains a tab or a line end or begins with a backslash; then a
            backslash, and the cell with \t, \n, \r and \\ for these four characters
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from preproc.files.errors import PreprocError
from preproc.files.input_file import MAX_LINE_BYTES, InputFile

if TYPE_CHECKING:
    import pyarrow as pa

DELIMITER, ESCAPE = b"\t", b"\\"
ELEMENT_END = "\xff"
"""Separates the elements of a list: a Latin-1 character that is not a byte of UTF-8."""

_BATCH_ROWS = 10_000
_SAMPLED_GROUPS, _SAMPLED_RANGES = 16, 64
"""The most row groups in a sample, and the most places within them."""
_LEAST_EXPONENT = 1e7
_MOST_EXACT = 2**53
"""Largest number up to which float64 represents all whole numbers."""
_INDEX = re.compile(r"__index_level_\d+__")
"""Column name that pandas gives to an index without a name."""
_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r"}
_LETTERS = {escape[1:]: character for character, escape in _ESCAPES.items()}
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TableColumn:
    """A column that is read, and how its cells become texts.

    Attributes:
        name: name in the table.
        truths: texts for false and true.
        takes_lists: True if all cells are lists, False if none may be.
        is_number: trailing zeros are removed from the fraction of decimals.
        is_id: floats must be whole numbers that float64 represents exactly.
        in_seconds: times are seconds since 1970 UTC, with six decimals if any has a fraction.
    """

    name: str
    truths: tuple[str, str] = ("false", "true")
    takes_lists: bool = False
    is_number: bool = False
    is_id: bool = False
    in_seconds: bool = False


Writer = Callable[[Sequence[Any]], bytes]
"""Writes columns of cells (from `cells_of`) as the text of their rows."""


@dataclasses.dataclass(frozen=True, slots=True)
class TableFile(InputFile):
    """A table that is read as text.

    Attributes:
        columns: columns to read.
        write: turns their cells into text.
        has_fractions: whether times in seconds have decimals.
    """

    columns: tuple[TableColumn, ...]
    write: Writer
    has_fractions: bool = False

    def blocks(self) -> Iterator[bytes]:
        """Yields the text: a header, then the rows.

        Raises:
            PreprocError: the file is damaged, or a column has an unsupported type.
        """
        import pyarrow as pa

        names = [column.name for column in self.columns]
        header = self.write([pa.array([name.encode()], pa.large_binary()) for name in names])
        for first_row, batch in _batches(self, names):
            if batch.num_rows:
                cells = [self._cells(batch, column, first_row) for column in self.columns]
                yield header + self.write(cells)
                header = b""
        if header:
            yield header

    def _cells(self, batch: "pa.RecordBatch", column: TableColumn, first_row: int) -> "pa.Array":
        import pyarrow as pa

        values = batch.column(column.name)
        try:
            cells = cells_of(values, column, has_fractions=self.has_fractions)
            _check_lengths(cells)
            return cells
        except _RefusedCellError as error:
            row = first_row + error.row + 1
            raise PreprocError(
                f"{self.path}, row {row}: column {column.name}: {error}",
                path=self.path,
                column=column.name,
            ) from None
        except (pa.ArrowException, TypeError) as error:
            raise PreprocError(
                f"{self.path}: column {column.name} has the type {values.type}: {error}. Convert "
                "it to texts, numbers, truth values, times or lists of these",
                path=self.path,
                column=column.name,
            ) from error


class _RefusedCellError(Exception):
    """A cell has no text; holds the row in its batch, from 0."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def _check_lengths(cells: "pa.Array") -> None:
    """Refuses cells that are longer than a line may be."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if cells.nbytes <= MAX_LINE_BYTES:
        return  # most columns are short enough in total
    if pa.types.is_dictionary(cells.type):
        lengths = pc.binary_length(cells.dictionary).take(cells.indices)
    else:
        lengths = pc.binary_length(cells)
    if (pc.max(lengths).as_py() or 0) > MAX_LINE_BYTES:
        is_long = pc.greater(lengths, MAX_LINE_BYTES)
        row = pc.index(is_long, True).as_py()
        raise _RefusedCellError(
            row, f"it has {lengths[row].as_py():,} bytes; a row may have at most 1 MiB"
        )


def open_table(file: InputFile, columns: Sequence[TableColumn], write: Writer) -> TableFile:
    """Opens a table as text, with some of its columns.

    Raises:
        PreprocError: a column name occurs twice, or the first rows cannot be read.
    """
    _check_names(file, [column.name for column in columns])
    fields = {field.name: getattr(file, field.name) for field in dataclasses.fields(InputFile)}
    table = TableFile(**fields, columns=tuple(columns), write=write)
    if any(column.in_seconds for column in columns):
        table = dataclasses.replace(table, has_fractions=_has_fractions(table))
    if (rows := _num_rows(file)) is None:
        return table
    first = next(table.blocks())
    text_bytes = len(first) / first.count(b"\n") * (1 + rows)
    return dataclasses.replace(table, inflation=text_bytes / file.size)


def table_schema(file: InputFile) -> "pa.Schema":
    """Returns names and types of the columns, without the unnamed index of a frame.

    Raises:
        PreprocError: the file is damaged, or has no columns.
    """
    import pyarrow as pa
    from pyarrow import ipc, parquet

    with _told(file):
        if file.compression == "parquet":
            with parquet.ParquetFile(file.path) as opened:
                schema = opened.schema_arrow
        else:
            with pa.OSFile(str(file.path)) as source, ipc.open_stream(source) as stream:
                schema = stream.schema
    fields = [field for field in schema if not _INDEX.fullmatch(field.name)]
    if not fields:
        raise PreprocError(f"{file.path}: has no columns", path=file.path)
    return pa.schema(fields)


def sample_rows(file: InputFile, names: Sequence[str], rows: int) -> "pa.Table":
    """Returns rows of some columns, from all over the table; all rows of a smaller table.

    Raises:
        PreprocError: the file is damaged; names the column.
    """
    import pyarrow as pa

    wanted = _spread(_group_sizes(file, names), rows)
    types = _check_names(file, names)
    parts = [pa.Table.from_batches([], pa.schema([types.field(name) for name in names]))]
    for first, batch in _batches(file, names, wanted):
        for part in wanted:
            start = max(part.start - first, 0)
            chosen = batch.slice(start, max(part.stop - first - start, 0))
            if chosen.num_rows:
                parts.append(pa.Table.from_batches([chosen]))
    return pa.concat_tables(parts)


def _spread(sizes: Sequence[int], rows: int) -> list[range]:
    """Returns the ranges of rows to sample; if there are many groups, from the heads of some.

    Reading a row also reads everything before it in its group.
    """
    if sum(sizes) <= rows:
        return [range(sum(sizes))]
    starts = [0, *itertools.accumulate(sizes)]
    count = min(len(sizes), _SAMPLED_GROUPS)
    chosen = [i * len(sizes) // count for i in range(count)]
    parts = _SAMPLED_RANGES // count
    each = -(-rows // (count * parts))
    ranges = []
    for group in chosen:
        cuts = [starts[group] + i * sizes[group] // parts for i in range(parts + 1)]
        ranges += [range(a, min(a + each, b)) for a, b in itertools.pairwise(cuts)]
    return ranges


def _check_names(file: InputFile, names: Sequence[str]) -> "pa.Schema":
    """Returns names and types of a table's columns.

    Raises:
        PreprocError: several columns share one of the names.
    """
    types = table_schema(file)
    twice = sorted({name for name in names if types.names.count(name) > 1})
    if twice:
        raise PreprocError(
            f"{file.path}: has several columns named {', '.join(twice)}", path=file.path
        )
    return types


def _group_sizes(file: InputFile, names: Sequence[str]) -> list[int]:
    """Returns the rows of each group of a table; a stream counts as one group."""
    from pyarrow import parquet

    if file.compression != "parquet":
        return [sum(batch.num_rows for _, batch in _batches(file, names[:1]))]
    with _told(file), parquet.ParquetFile(file.path) as opened:
        groups = range(opened.num_row_groups)
        return [opened.metadata.row_group(group).num_rows for group in groups]


def _num_rows(file: InputFile) -> int | None:
    """Returns the number of rows of a table; None if its file does not record it."""
    from pyarrow import parquet

    if file.compression != "parquet":
        return None
    with _told(file), parquet.ParquetFile(file.path) as opened:
        return int(opened.metadata.num_rows)


def _has_fractions(table: TableFile) -> bool:
    """Returns True if any time of a column in seconds has a fraction."""
    import pyarrow as pa

    kinds = table_schema(table)
    names = [column.name for column in table.columns if column.in_seconds]
    names = [name for name in names if is_time(kinds.field(name).type)]
    for _, batch in _batches(table, names) if names else ():
        for column in batch.columns:
            is_dictionary = pa.types.is_dictionary(column.type)
            values = column.dictionary_decode() if is_dictionary else column
            if pa.types.is_timestamp(values.type) and not _are_whole(values):
                return True
    return False


def _are_whole(times: "pa.Array") -> bool:
    """Returns True if no time has a fraction of a second."""
    import pyarrow as pa
    import pyarrow.compute as pc

    units, per_second = times.cast(pa.int64()), _UNITS[times.type.unit]
    whole = pc.multiply(pc.divide(units, per_second), per_second)
    return not pc.any(pc.not_equal(units, whole)).as_py()


def _batches(
    file: InputFile, names: Sequence[str], ranges: Sequence[range] = ()
) -> Iterator[tuple[int, "pa.RecordBatch"]]:
    """Yields each batch with the number of its first row; with `ranges`, at least their batches.

    Raises:
        PreprocError: the file is damaged; names the column.
    """
    import pyarrow as pa

    try:
        if file.compression == "parquet":
            yield from _parquet_batches(file, names, ranges)
        else:
            yield from _stream_batches(file, names)
    except (pa.ArrowException, OSError) as error:
        for name in names if len(names) > 1 else ():
            for _ in _batches(file, [name], ranges):
                pass
        column = f"column {names[0]} " if len(names) == 1 else ""
        raise PreprocError(
            f"{file.path}: {column}cannot be read ({error})", path=file.path
        ) from error


def _parquet_batches(
    file: InputFile, names: Sequence[str], ranges: Sequence[range]
) -> Iterator[tuple[int, "pa.RecordBatch"]]:
    from pyarrow import parquet

    with parquet.ParquetFile(file.path) as opened:
        first = 0
        for group in range(opened.num_row_groups):
            at, first = first, first + opened.metadata.row_group(group).num_rows
            if ranges and all(each.stop <= at or first <= each.start for each in ranges):
                continue
            for batch in opened.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[*names]):
                yield at, batch.select([*names])
                at += batch.num_rows
                if ranges and all(each.stop <= at or first <= each.start for each in ranges):
                    break


def _stream_batches(
    file: InputFile, names: Sequence[str]
) -> Iterator[tuple[int, "pa.RecordBatch"]]:
    import pyarrow as pa
    from pyarrow import ipc

    with pa.OSFile(str(file.path)) as source:
        with ipc.open_stream(source) as stream:
            fields = [stream.schema.names.index(name) for name in names]
        source.seek(0)
        options = ipc.IpcReadOptions(included_fields=fields)
        with ipc.open_stream(source, options=options) as stream:
            at = 0
            for batch in stream:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    part = batch.slice(start, _BATCH_ROWS)
                    yield at, part.select([*names])
                    at += part.num_rows


@contextlib.contextmanager
def _told(file: InputFile) -> Iterator[None]:
    """Turns an Arrow error into one that names the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise PreprocError(
            f"{file.path}: cannot be read as {file.compression} ({error})", path=file.path
        ) from error


def texts_of(values: "pa.Array", column: TableColumn) -> "pa.Array":
    """Returns the text of each cell as binary; otherwise like `cells_of`."""
    return _binary(cells_of(values, column))


def cells_of(values: "pa.Array", column: TableColumn, *, has_fractions: bool = False) -> "pa.Array":
    """Returns the text of each cell; null if it is missing.

    The result has Arrow strings or binaries, or a dictionary of them. Elements of lists are
    separated by `ELEMENT_END`; a missing element is empty.

    Raises:
        TypeError: cells of this type have no text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, values.type
    if isinstance(kind, pa.BaseExtensionType):
        return cells_of(values.storage, column, has_fractions=has_fractions)
    if types.is_run_end_encoded(kind):
        return cells_of(pc.run_end_decode(values), column, has_fractions=has_fractions)
    if types.is_dictionary(kind) and column.is_id:
        return cells_of(values.dictionary_decode(), column, has_fractions=has_fractions)
    if types.is_dictionary(kind):
        texts = cells_of(values.dictionary, column, has_fractions=has_fractions)
        if types.is_dictionary(texts.type):
            texts = _binary(texts)
        return pa.DictionaryArray.from_arrays(values.indices, texts)
    if is_list(kind):
        if not column.takes_lists:
            raise TypeError("expected one value per row, not a list")
        return _texts_of_lists(values, column)
    if types.is_nested(kind):
        raise TypeError("it is nested")
    if types.is_floating(kind):
        return _texts_of_floats(values, is_id=column.is_id)
    if types.is_date(kind) or types.is_timestamp(kind):
        return _texts_of_times(values, column, has_fractions=has_fractions)
    return _texts_of_others(values, column)


def _binary(cells: "pa.Array") -> "pa.Array":
    """Returns cells as large binaries."""
    import pyarrow as pa

    if pa.types.is_dictionary(cells.type):
        return cells.dictionary.cast(pa.large_binary()).take(cells.indices)
    return cells.cast(pa.large_binary())


def _texts_of_others(values: "pa.Array", column: TableColumn) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, values.type
    if types.is_null(kind):
        return pa.nulls(len(values), pa.binary())
    if types.is_boolean(kind):
        no, yes = (_scalar(text.encode()) for text in column.truths)
        return pc.if_else(values, yes, no)
    if types.is_time(kind) or (types.is_decimal(kind) and column.is_number):
        return _without_zeros(values.cast(pa.string()))
    if types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return values.cast(pa.binary())
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return values if any(is_one(kind) for is_one in texts) else values.cast(pa.string())


def is_read(kind: "pa.DataType | None") -> bool:
    """Returns True if cells of a type, or the elements of its lists, can become texts."""
    import pyarrow as pa

    if kind is None:
        return False
    try:
        cells_of(pa.nulls(0, kind), TableColumn(name="", takes_lists=is_list(kind)))
    except (TypeError, pa.ArrowException):
        return False
    return True


def is_list(kind: "pa.DataType") -> bool:
    """Returns True if cells of a type are lists."""
    import pyarrow as pa

    types = pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    views = (types.is_list_view, types.is_large_list_view)
    return any(is_one(kind) for is_one in (*lists, *views))


def is_time(kind: "pa.DataType") -> bool:
    """Returns True if cells of a type are dates, or times with a date."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _texts_of_lists(values: "pa.Array", column: TableColumn) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    element = dataclasses.replace(column, takes_lists=False)
    texts = texts_of(values.flatten(), element).fill_null(b"")
    end = ELEMENT_END.encode("latin-1")
    if end in _text_of(texts):
        # Neither way is UTF-8, so the row is refused.
        texts = pc.replace_substring(texts, end, b"\xfe")
    lengths = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int64())
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), texts)
    return pc.binary_join(lists, _scalar(end))


def _texts_of_floats(values: "pa.Array", *, is_id: bool) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.cast(pa.float64()) if pa.types.is_float16(values.type) else values
    numbers = values.to_numpy(zero_copy_only=False)  # null is NaN
    is_nothing = np.isnan(numbers)
    is_whole = (np.trunc(numbers) == numbers) & (np.abs(numbers) <= _MOST_EXACT)
    if is_id and not (is_whole | is_nothing).all():
        row = int(np.argmin(is_whole | is_nothing))
        raise _RefusedCellError(
            row,
            f"{values[row].as_py()!r} is not a whole number that float64 can represent exactly; "
            "give ids as integers or texts (pandas: dtype Int64)",
        )
    texts = values.cast(pa.string())
    if np.count_nonzero(is_nothing) > values.null_count:
        texts = pc.if_else(pa.array(~is_nothing), texts, pa.scalar(None, pa.string()))
    # Arrow gives these an exponent or a sign.
    is_odd = is_whole & (
        (np.abs(numbers) >= _LEAST_EXPONENT) | (np.signbit(numbers) & (numbers == 0))
    )
    if is_odd.any():
        whole = pa.array(numbers[is_odd].astype(np.int64)).cast(pa.string())
        texts = pc.replace_with_mask(texts, pa.array(is_odd), whole)
    return texts


def _texts_of_times(values: "pa.Array", column: TableColumn, *, has_fractions: bool) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    is_date = pa.types.is_date(values.type)
    if column.in_seconds:
        values = values.cast(pa.timestamp("s")) if is_date else values
        per_second = _UNITS[values.type.unit]
        units = values.cast(pa.int64())
        if not has_fractions:
            return pc.divide(units, per_second).cast(pa.string())
        return pa.array([_seconds(number, per_second) for number in units.to_pylist()], pa.string())
    if is_date:
        return values.cast(pa.date32()).cast(pa.string())
    # Casting between types with and without a zone keeps the instant.
    if _are_whole(values):
        texts = values.cast(pa.timestamp("s")).cast(pa.string())
    else:
        texts = _without_zeros(values.cast(pa.timestamp(values.type.unit)).cast(pa.string()))
    return texts if values.type.tz is None else pc.binary_join_element_wise(texts, "Z", "")


def _seconds(number: int | None, per_second: int) -> str | None:
    if number is None:
        return None
    micros = abs(number) * 10**6 // per_second
    return f"{'-' * (number < 0)}{micros // 10**6}.{micros % 10**6:06d}"


def _without_zeros(texts: "pa.Array") -> "pa.Array":
    """Returns numbers without trailing zeros in their fraction."""
    import pyarrow.compute as pc

    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    return pc.replace_substring_regex(texts, r"(\.[0-9]*[1-9])0+$", r"\1")


def write_cells(columns: Sequence["pa.Array"]) -> bytes:
    """Returns rows of cells as text; see the top of this module."""
    pattern = r"\A\\|[\t\n\r]"
    cells = [_replaced(each, b"\t\n\r\\", pattern, _escape) for each in map(_binary, columns)]
    return _rows_of(cells, DELIMITER)


def _escape(texts: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    for character, escape in _ESCAPES.items():
        texts = pc.replace_substring(texts, character, escape)
    return pc.binary_join_element_wise(_scalar(ESCAPE), texts, _scalar(b""))


def _replaced(
    cells: "pa.Array", wanted: bytes, pattern: str, replacement: Callable[["pa.Array"], "pa.Array"]
) -> "pa.Array":
    """Replaces the cells that match a pattern; such cells contain one of the `wanted` bytes."""
    import pyarrow.compute as pc

    text = _text_of(cells)
    if not any(byte in text for byte in wanted):
        return cells
    chosen = pc.fill_null(pc.match_substring_regex(cells, pattern), False)
    if not pc.any(chosen).as_py():
        return cells
    return pc.replace_with_mask(cells, chosen, replacement(cells.filter(chosen)))


def _text_of(cells: "pa.Array") -> bytes:
    """Returns the concatenated bytes of all cells."""
    _, offsets, text = cells.buffers()
    if text is None or not len(cells):
        return b""
    ends = np.frombuffer(offsets, np.int64)
    first, last = int(ends[cells.offset]), int(ends[cells.offset + len(cells)])
    return bytes(text[first:last].to_pybytes())


def _rows_of(columns: Sequence["pa.Array"], delimiter: bytes) -> bytes:
    import pyarrow.compute as pc

    options = pc.JoinOptions(null_handling="replace", null_replacement="")
    rows = pc.binary_join_element_wise(*columns, _scalar(delimiter), options=options)
    return _text_of(pc.binary_join_element_wise(rows, _scalar(b""), _scalar(b"\n")))


def _scalar(text: bytes) -> "pa.Scalar[Any]":
    import pyarrow as pa

    return pa.scalar(text, pa.large_binary())


def escaped(cell: bytes) -> bytes:
    """Escapes a cell; see the top of this module."""
    if not cell.startswith(ESCAPE) and not any(end in cell for end in (b"\t", b"\n", b"\r")):
        return cell
    for character, escape in _ESCAPES.items():
        cell = cell.replace(character, escape)
    return ESCAPE + cell


def unescaped(cell: bytes) -> bytes:
    """Reverses `escaped`."""
    if not cell.startswith(ESCAPE):
        return cell
    return re.sub(
        rb"\\(.)", lambda match: _LETTERS.get(match[1], match[1]), cell[1:], flags=re.DOTALL
    )
