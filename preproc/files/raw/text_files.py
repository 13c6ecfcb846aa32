# SPDX-License-Identifier: Apache-2.0
"""Files of text in other forms: UTF-16, CR line ends and dictionaries of Python.

They are read as UTF-8 with LF, and as objects of JSON.
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
"""Delimiter of Hive's text files, which have no header and no quotes, and \\N for nothing."""
DELIMITERS = (",", "\t", ";", "|", HIVE)
"""Of csv files in the world."""


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


def as_text(file: InputFile) -> InputFile:
    """Returns a file as UTF-8 with LF, and dictionaries of Python as JSON; others as they are.

    Raises:
        PreprocError: it is an array of JSON.
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
            f"{file.path}: is one JSON array; write an object a line: jq -c '.[]' {file.path.name}",
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
    """Returns the position in the file of a line of its text."""
    if file.is_table:
        return f"row {line - 1}"  # after the header that the text has
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
    """Returns a dictionary as Python prints it as JSON, another line as it is."""
    with contextlib.suppress(JsonError):
        read_object(line)
        return line
    with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        row = ast.literal_eval(line.decode())
        return json.dumps(row).encode() if isinstance(row, dict) else line
    return line
