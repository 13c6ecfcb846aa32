# SPDX-License-Identifier: Apache-2.0
"""A sample of a table, and what its column types reveal."""

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path

from preproc.clicks.schema.grammar import is_text, shorten_number
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.raw import tables
from preproc.files.raw.objects import JsonError, cells_of_object, keys_of
from preproc.files.raw.tables import TableColumn

SAMPLE_ROWS = 60_000
"""Rows of the sample, from all over a table; all rows of a smaller one."""

_DAMAGED = 0.01
"""Largest fraction of cells in a text column that may be invalid UTF-8."""


@dataclasses.dataclass(frozen=True, slots=True)
class TableSample:
    """Rows of a table.

    Attributes:
        columns: name of each column -> its texts, row by row.
        rows: number of rows.
        separators: name of each list column -> a separator that occurs in no element, if possible.
        floats: names of the float columns without missing values.
        unread: name of each column that no role reads -> the reason.
    """

    columns: dict[str, list[str]]
    rows: int
    separators: dict[str, str]
    floats: tuple[str, ...]
    unread: dict[str, str]


def sample_table(file: InputFile, separators: Sequence[str]) -> TableSample:
    """Reads a sample of a table.

    Args:
        file: the table.
        separators: candidates for the separator of lists, by preference.

    Raises:
        PreprocError: it cannot be read, or has no row.
    """
    import pyarrow as pa

    types = tables.table_schema(file)
    unread = {
        field.name: f"of type {field.type}, which no role reads"
        for field in types
        if not tables.is_read(field.type)
    }
    names = [name for name in types.names if name not in unread]
    if not names:
        raise PreprocError(f"{file.path}: has no column of a supported type", path=file.path)
    sample = tables.sample_rows(file, names, SAMPLE_ROWS)
    if not len(sample):
        raise PreprocError(f"{file.path}: has columns but no row", path=file.path)
    columns = {name: list[str]() for name in types.names}
    chosen: dict[str, str] = {}
    floats = []
    for name in names:
        values = sample.column(name)
        takes_lists = tables.is_list(values.type)
        column = TableColumn(name=name, takes_lists=takes_lists)
        cells = [tables.texts_of(chunk, column) for chunk in values.chunks]
        rows = [text or b"" for part in cells for text in part.to_pylist()]
        if takes_lists:
            end = tables.ELEMENT_END.encode("latin-1")
            elements = {*itertools.chain.from_iterable(row.split(end) for row in rows)}
            chosen[name] = _separator(elements, separators)
            is_of_floats = pa.types.is_floating(values.type.value_type)
            if is_of_floats and not all(map(shorten_number, elements - {b""})):
                unread[name] = "lists of decimal numbers, which cannot be categories"
                del chosen[name]
                continue
            rows = [row.replace(end, chosen[name].encode()) for row in rows]
        if sum(map(is_text, rows)) < (1 - _DAMAGED) * len(rows):
            unread[name] = "bytes that are not UTF-8, which no role reads"
            continue
        texts = [row.decode(errors="replace") for row in rows]
        if pa.types.is_floating(values.type) and "" not in texts:
            floats.append(name)
        columns[name] = texts
    return TableSample(columns, len(sample), chosen, tuple(floats), unread)


def sample_objects(path: Path, lines: Sequence[bytes], separators: Sequence[str]) -> TableSample:
    """Returns a sample of a file of objects, whose lists are texts with a separator.

    Args:
        path: the file, for messages.
        lines: some of its lines.
        separators: candidates for the separator of lists, by preference.

    Raises:
        PreprocError: no line is an object.
    """
    keys = keys_of(path, lines)
    unread = {
        key: "objects, which no role reads"
        for key, value in keys.items()
        if isinstance(value, tuple)
    }
    ends: dict[str, str | None] = {
        key: tables.ELEMENT_END if isinstance(value, list) else ""
        for key, value in keys.items()
        if key not in unread
    }
    rows = []
    for line in lines:
        with contextlib.suppress(JsonError):
            rows.append(cells_of_object(line, ends))
    columns, chosen = {key: list[str]() for key in keys}, {}
    for (key, end), cells in zip(ends.items(), zip(*rows, strict=True), strict=False):
        mark = end and end.encode("latin-1")
        if mark:
            elements = {*itertools.chain.from_iterable(cell.split(mark) for cell in cells)}
            chosen[key] = _separator(elements, separators)
            cells = tuple(cell.replace(mark, chosen[key].encode()) for cell in cells)
        columns[key] = [cell.decode(errors="replace") for cell in cells]
    return TableSample(columns, len(rows), chosen, (), unread)


def _separator(elements: Collection[bytes], separators: Sequence[str]) -> str:
    """Returns the first separator that occurs in no element, or simply the first one."""
    fitting = (s for s in separators if not any(s.encode() in each for each in elements))
    return next(fitting, separators[0])
