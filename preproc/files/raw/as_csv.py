# SPDX-License-Identifier: Apache-2.0
"""Files of other forms, read as csv with commas: objects of JSON and dictionaries of Python.

UTF-16 and CR line ends are read as UTF-8 with LF; `delimiter_of` tells the delimiter of a csv file.
"""

import ast
import codecs
import csv
import dataclasses
import functools
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, without_mark

Convert = Callable[[Iterator[bytes]], Iterator[bytes]]

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DELIMITERS = ("\t", ";", "|", "\x01")
"""The last is that of Hive."""
_UDATA_FIELDS = 4
_ROWS = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class ConvertedFile(InputFile):
    """A file whose text is converted while it is read.

    Attributes:
        source: the file as it is.
        convert: reads its text.
    """

    source: InputFile
    convert: Convert

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of the file are its text."""
        return False

    def blocks(self) -> Iterator[bytes]:
        """Yields the converted text."""
        yield from self.convert(self.source.blocks())


def as_utf8(file: InputFile) -> InputFile:
    """Returns a file of UTF-16, or of CR line ends alone, as UTF-8 with LF; others as they are."""
    if file.is_table:
        return file
    head = next(file.blocks(), b"")
    if head.startswith(_UTF16_MARKS):
        return as_utf8(_converted(file, functools.partial(_from_utf16, file.path)))
    if b"\r" in head and b"\n" not in head:
        return _converted(file, _with_line_feeds)
    return file


def as_csv(file: InputFile, known_keys: Sequence[Collection[str]]) -> InputFile:
    """Returns a file of objects as csv, others as they are.

    Args:
        file: the file.
        known_keys: JSON objects that have all of some of them stay.

    Raises:
        PreprocError: it is an array of JSON.
    """
    file = as_utf8(file)
    head = next(without_mark(file.blocks())[1], b"")
    if re.match(rb"\[\s*\{", head):
        raise PreprocError(
            f"{file.path}: is one JSON array; write an object a line: jq -c '.[]' {file.path.name}",
            path=file.path,
        )
    line = head.partition(b"\n")[0].removesuffix(b"\r")
    row = _object_of(line.decode(errors="replace")) if line.startswith(b"{") else None
    if row is None or any({*keys} <= row.keys() for keys in known_keys):
        return file
    return _converted(file, _from_objects)


def _converted(file: InputFile, convert: Convert) -> ConvertedFile:
    fields = {field.name: getattr(file, field.name) for field in dataclasses.fields(InputFile)}
    return ConvertedFile(**fields, source=file, convert=convert)


def delimiter_of(line: bytes, is_header: Callable[[bytes], bool]) -> str:
    """Returns the delimiter of a csv file.

    Args:
        line: its first line.
        is_header: tells whether a line of csv has names of columns; `u.data` has none.
    """
    delimiter = max(_DELIMITERS, key=lambda each: line.count(each.encode()))
    count = line.count(delimiter.encode())
    if line.startswith(b"{") or count <= line.count(b","):
        return ","
    has_header = is_header(line.replace(delimiter.encode(), b","))
    if delimiter == "\t" and count == _UDATA_FIELDS - 1 and not has_header:
        return ","  # MovieLens' u.data
    return delimiter


def position(file: InputFile, line: int, offset: int) -> str:
    """Returns the position in the file of a line of its text."""
    if file.is_table:
        return f"row {line - 1}"  # after the header that the text has
    if not isinstance(file, ConvertedFile):
        return f"line {line}, byte {offset}"
    return f"line {line - (file.convert is _from_objects)}"


def _from_utf16(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    decoder, read = codecs.getincrementaldecoder("utf-16")(), 0
    try:
        for block in itertools.chain(blocks, [b""]):
            text = decoder.decode(block, final=not block)
            read += len(block)
            yield text.encode()
    except UnicodeError as error:
        raise PreprocError(
            f"{path}: the UTF-16 text is damaged after byte {read} ({error}); get the file again",
            path=path,
        ) from error


def _with_line_feeds(blocks: Iterator[bytes]) -> Iterator[bytes]:
    return (block.replace(b"\r", b"\n") for block in blocks)


def _from_objects(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the texts and numbers of the first object's keys."""
    lines = _lines(blocks)
    first = next(lines)
    row = _object_of(first) or {}
    keys = [key for key, value in row.items() if not isinstance(value, (dict, list))]

    def values(line: str) -> list[object]:
        row = _object_of(line)
        return [line] if row is None else [_plain(row.get(key)) for key in keys]

    yield from _csv_of(itertools.chain([keys], map(values, itertools.chain([first], lines))))


def _plain(value: object) -> object:
    """Returns nothing for null and NaN, and whole numbers without a point."""
    if isinstance(value, float):
        return "" if math.isnan(value) else int(value) if value.is_integer() else value
    return "" if value is None else value


def _object_of(line: str) -> dict[str, Any] | None:
    """Returns a JSON object, or a dictionary as Python prints it."""
    for read in (json.loads, ast.literal_eval):
        try:
            row = read(line)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return row if isinstance(row, dict) else None
    return None


def _lines(blocks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for block in without_mark(blocks)[1]:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="surrogateescape")
    if rest:
        yield rest.decode(errors="surrogateescape")


def _csv_of(rows: Iterable[Iterable[object]]) -> Iterator[bytes]:
    """Writes rows, each as one line."""
    rows = iter(rows)
    while several := list(itertools.islice(rows, _ROWS)):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        # A blank line stays one: a row of one empty field would get quotes.
        written = ([str(v).translate(_LINE_ENDS) for v in row] for row in several)
        writer.writerows([] if row == [""] else row for row in written)
        yield text.getvalue().encode(errors="surrogateescape")


_LINE_ENDS = {ord("\r"): "\v", ord("\n"): "\v"}
"""Of values: the grammar of ids refuses this character, and a blank would make another id."""
