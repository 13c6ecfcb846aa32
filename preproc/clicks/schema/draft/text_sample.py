# SPDX-License-Identifier: Apache-2.0
"""A sample of a text log, and how its fields are separated."""

import dataclasses
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from preproc.clicks.schema.grammar import DECIMAL
from preproc.clicks.schema.row_format import split_fields
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, open_fd
from preproc.files.raw.encoding import encoding_fault
from preproc.files.raw.text_files import DELIMITERS, HIVE, as_text

SAMPLE_BYTES = 8 * 2**20
"""Bytes of text in the sample; a smaller file is read whole."""
_PIECE_BYTES, _LEAST_LINES = 2**14, 8
"""Bytes and lines to read at each place all over a file; more bytes if lines are long."""
_SAMPLED_PARTS = 16
"""Parts of a folder that share the sample, besides the largest part."""
_MOST_TEXT = 2**28
"""The most text of a compressed file that is read for the sample."""

QUOTE = '"'
NUMBER = re.compile(DECIMAL.pattern.decode())


class Dialect(NamedTuple):
    """How the fields of a log are separated."""

    delimiter: str
    has_header: bool
    has_quotes: bool


@dataclasses.dataclass(frozen=True, slots=True)
class TextSample:
    """Rows of a log.

    Attributes:
        name: what the rows were sampled from.
        columns: name of each column -> its texts, row by row.
        rows: number of rows.
        dialect: how the fields are separated.
    """

    name: str
    columns: dict[str, list[str]]
    rows: int
    dialect: Dialect


def sample_text(path: Path, sampled: str, samples: list[list[str]]) -> TextSample:
    """Returns a sample of a text log.

    Args:
        path: the log, a file or a folder of parts, for messages.
        sampled: what the lines were sampled from.
        samples: lines from all over the log, those of its head first.

    Raises:
        PreprocError: the log has no rows of several fields.
    """
    head, *others = samples
    delimiter = _delimiter(head)
    if delimiter is None:
        raise PreprocError(
            f"{path}: no comma, tab, semicolon or bar occurs equally often in its first lines; "
            "write the schema yourself (docs/own_clicks.md)",
            path=path,
        )
    first = _fields(head[0], delimiter)
    lines = [line for lines in (head, *others) for line in lines]
    rows = [row for row in (_fields(line, delimiter) for line in lines) if len(row) == len(first)]
    has_header = _is_header(first, rows[1:])
    twice = sorted({name for name in first if first.count(name) > 1})
    if has_header and twice:
        raise PreprocError(f"{path}: the header names {', '.join(twice)} more than once", path=path)
    if delimiter == HIVE:
        rows = [["" if cell == "\\N" else cell for cell in row] for row in rows]
    names = first if has_header else [f"c{number}" for number in range(len(first))]
    columns = [list(cells) for cells in zip(*rows[has_header:], strict=True)]
    if not columns and len(lines) > 1:
        count = len(_fields(lines[1], delimiter))
        raise PreprocError(
            f"{path}: the header has {len(first)} fields, but the row after it has {count}; "
            "correct the header, or remove the delimiter at the end of the rows",
            path=path,
        )
    if not columns:
        raise PreprocError(f"{path}: has a header but no row", path=path)
    # In a log of only numbers a quote is always an error.
    has_quotes = any(QUOTE in line for line in lines)
    dialect = Dialect(delimiter=delimiter, has_header=has_header, has_quotes=has_quotes)
    by_name = dict(zip(names, columns, strict=True))
    return TextSample(sampled, by_name, len(rows) - has_header, dialect)


def sample_lines(path: Path, files: list[InputFile]) -> tuple[str, list[list[str]]]:
    """Returns the name of what is sampled, and sampled lines; a folder is sampled across its parts.

    Raises:
        PreprocError: a file cannot be read, or there is no line.
    """
    sampled, samples = _samples(path, [as_text(file) for file in files])
    if not samples[0]:
        raise PreprocError(f"{path}: has no line", path=path)
    return sampled, samples


def _samples(path: Path, files: list[InputFile]) -> tuple[str, list[list[str]]]:
    if not path.is_dir():
        return path.name, _sample(files[0], SAMPLE_BYTES)
    steps = max(1, min(_SAMPLED_PARTS, len(files)) - 1)
    spread = [files[i * (len(files) - 1) // steps] for i in range(steps + 1)]
    # If any file has rows, the largest does, and its first line is the header if files have one.
    largest = max(files, key=lambda file: file.text_bytes)
    chosen = list(dict.fromkeys((largest, *spread)))
    samples, *others = [_sample(file, SAMPLE_BYTES // len(chosen)) for file in chosen]
    for first, *rest in others:
        samples += [first[1:], *rest]
    return f"{len(chosen)} of {len(files)} files of {path.name}", samples


def _sample(file: InputFile, num_bytes: int) -> list[list[str]]:
    """Returns about `num_bytes` of lines from all over a file, those of its head first."""
    samples = []
    for start, text, is_end in _runs(file, num_bytes):
        lines = text.split(b"\n")
        # The first and the last line of a run may be cut off.
        lines = lines[start > 0 : None if is_end or len(lines) == 1 else -1]
        if fault := encoding_fault(file, lines, () if start else range(1, len(lines) + 1)):
            raise PreprocError(fault)
        decoded = (line.decode("utf-8-sig", "replace") for line in lines)
        samples.append([line.removesuffix("\r") for line in decoded if line])
    return samples or [[]]


def _runs(file: InputFile, num_bytes: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yields start and text of runs of pieces, and whether the file ends there."""
    size = _PIECE_BYTES
    head = next(file.blocks(), b"")
    while head[:size].count(b"\n") < _LEAST_LINES and size < min(len(head), num_bytes // 4):
        size *= 4
    pieces, end = (_plain_pieces if file.is_plain else _pieces)(file, size, num_bytes // size)
    numbers = sorted(pieces)
    for number in numbers:
        if number - 1 in pieces:
            continue  # it is part of the run before
        last = next(n for n in itertools.count(number) if n + 1 not in pieces)
        text = b"".join(pieces[n] for n in range(number, last + 1))
        yield size * number, text, size * number + len(text) == end


def _plain_pieces(file: InputFile, size: int, most: int) -> tuple[dict[int, bytes], int]:
    """Returns evenly spread pieces of a plain file by their numbers, and the end of its text."""
    count = -(-file.size // size)
    numbers = (
        {i * count // most for i in range(most)} | {count - 1} if count > most else range(count)
    )
    with open_fd(file.path) as fd:
        return {n: os.pread(fd, size, n * size) for n in numbers}, file.size


def _pieces(file: InputFile, size: int, most: int) -> tuple[dict[int, bytes], int]:
    """Returns pieces of a text of unknown length, and its end.

    Whenever there are too many pieces, every second one is dropped.
    """
    pieces, stride, number, rest = dict[int, bytes](), 1, 0, b""
    for block in file.blocks():
        rest += block
        for at in range(0, len(rest) - size, size):
            if number % stride == 0:
                pieces[number] = rest[at : at + size]
            number += 1
            if len(pieces) > most:
                stride *= 2
                pieces = {n: piece for n, piece in pieces.items() if n % stride == 0}
        rest = rest[(len(rest) - 1) // size * size :]
        if number * size > _MOST_TEXT:
            return pieces, -1
    return pieces | ({number: rest} if rest else {}), number * size + len(rest)


def _fields(line: str, delimiter: str) -> list[str]:
    """Returns the fields of a line; empty if its quotes are wrong."""
    quote = "" if delimiter == HIVE else QUOTE
    if not quote or quote not in line:
        return line.split(delimiter)
    split = split_fields(line.encode(), delimiter.encode(), quote.encode())
    return [field.decode() for field in split or ()]


def _delimiter(lines: list[str]) -> str | None:
    """Returns the delimiter that most lines, and the first line, have equally often.

    Separators of lists may outnumber delimiters, but a header does not have them.
    """
    usual = []
    for delimiter in (*DELIMITERS, "::"):
        counts = Counter(len(_fields(line, delimiter)) for line in lines[:100])
        count, alike = counts.most_common(1)[0]
        if count > 1 and alike > 0.9 * len(lines[:100]):
            is_in_first = len(_fields(lines[0], delimiter)) == count
            usual.append((is_in_first, count, alike, delimiter))
    return max(usual)[3] if usual else None


def _is_header(first: list[str], rows: list[list[str]]) -> bool:
    """Returns True if the first row holds names, not values."""
    columns = [[cell for cell in cells if cell] for cells in zip(*rows[:100], strict=True)]
    is_name_of_numbers = (
        name and not NUMBER.fullmatch(name) and cells and all(map(NUMBER.fullmatch, cells))
        for name, cells in zip(first, columns, strict=False)
    )
    if any(is_name_of_numbers):
        return True
    if "" in first or any(NUMBER.fullmatch(name) for name in first):
        return False
    has_numbers = any(NUMBER.fullmatch(cell) for row in rows[:100] for cell in row)
    are_names = len(rows) >= 10 and not any(set(first) & set(row) for row in rows)
    return has_numbers or are_names or not rows
