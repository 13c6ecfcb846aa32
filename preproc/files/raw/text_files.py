# SPDX-License-Identifier: Apache-2.0
"""Text files in other forms: UTF-16, CR line ends and Python dictionaries.

They are read as UTF-8 with LF line ends, and as JSON objects.
"""

import ast
import codecs
import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, without_mark
from preproc.files.raw.objects import JsonError, is_object, read_object

Convert = Callable[[Iterator[bytes]], Iterator[bytes]]

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HIVE = "\x01"
"""Delimiter of Hive's text files, which have no header, no quotes, and \\N for missing values."""
DELIMITERS = (",", "\t", ";", "|", HIVE)
"""Delimiters that csv files use in practice."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConvertedFile(InputFile):
    """A file whose text is converted while it is read.

    Attributes:
        source: the original file.
        convert: reads and converts its text.
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


def as_text(file: InputFile) -> InputFile:
    """Converts a file to UTF-8 with LF, and Python dictionaries to JSON; keeps other files.

    Raises:
        PreprocError: the file is a JSON array.
    """
    if file.is_table:
        return file
    head = next(file.blocks(), b"")
    if head.startswith(_UTF16_MARKS):
        return as_text(_converted(file, functools.partial(_from_utf16, file.path)))
    if b"\r" in head and b"\n" not in head:
        return as_text(_converted(file, _with_line_feeds))
    head = next(without_mark(iter([head]))[1], b"")
    if re.match(rb"\s*\[\s*\{", head):
        raise PreprocError(
            f"{file.path}: is one JSON array; write one object per line: "
            f"jq -c '.[]' {file.path.name}",
            path=file.path,
        )
    line = head.partition(b"\n")[0]
    if is_object(line) and _as_json(line) != line:
        return _converted(file, _from_dictionaries)
    return file


def _converted(file: InputFile, convert: Convert) -> ConvertedFile:
    fields = {field.name: getattr(file, field.name) for field in dataclasses.fields(InputFile)}
    return ConvertedFile(**fields, source=file, convert=convert)


def position(file: InputFile, line: int, offset: int) -> str:
    """Returns the position of a line in its file, for messages."""
    if file.is_table:
        return f"row {line - 1}"  # the text begins with a header
    if not isinstance(file, ConvertedFile):
        return f"line {line}, byte {offset}"
    return f"line {line}"


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


def _from_dictionaries(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in without_mark(blocks)[1]:
        *lines, rest = (rest + block).split(b"\n")
        yield b"".join(_as_json(line) + b"\n" for line in lines)
    yield _as_json(rest)


def _as_json(line: bytes) -> bytes:
    """Converts a dictionary as printed by Python to JSON; returns other lines unchanged."""
    with contextlib.suppress(JsonError):
        read_object(line)
        return line
    with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        row = ast.literal_eval(line.decode())
        return json.dumps(row).encode() if isinstance(row, dict) else line
    return line
