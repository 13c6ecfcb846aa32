# SPDX-License-Identifier: Apache-2.0
"""Reads the tables in which public logs come."""

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from benchmark.own_logs.log import Rows


def rows_of(text: TextIO, delimiter: str = ",") -> Iterator[list[str]]:
    """Yields the rows of a csv file that are not blank."""
    yield from filter(None, csv.reader(text, delimiter=delimiter))


def table(path: Path, delimiter: str = ",") -> Iterator[list[str]]:
    """Yields the rows of a csv file."""
    with path.open(newline="", encoding="utf-8-sig") as text:
        yield from rows_of(text, delimiter)


def zipped(path: Path, member: str, delimiter: str = ",") -> Iterator[list[str]]:
    """Yields the rows of a csv file in an archive."""
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        yield from rows_of(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter)


def fields(path: Path, separator: str) -> Iterator[list[str]]:
    """Yields the fields of lines without quotes, which any text separates."""
    with path.open(encoding="latin-1") as text:
        for line in text:
            yield line.rstrip("\r\n").split(separator)


def as_it_is(delimiter: str = ",") -> Callable[[Path], Rows]:
    """Returns the `make` of a csv file with a header, whose values are kept."""
    return lambda path: table(path, delimiter)


def member(name: str, delimiter: str = ",") -> Callable[[Path], Rows]:
    """Returns the `make` of a csv file with a header in an archive."""
    return lambda path: zipped(path, name, delimiter)


def with_header(header: Sequence[str], rows: Rows) -> Iterator[Sequence[str]]:
    """Yields a header, then rows."""
    yield header
    yield from rows
