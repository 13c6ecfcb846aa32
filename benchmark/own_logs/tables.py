# SPDX-License-Identifier: Apache-2.0
"""Reads the file formats of public logs, and orders their rows."""

import csv
import io
import random
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmark.own_logs.log import RowsOfFields


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
    """Yields the fields of lines without quotes, separated by any text."""
    with path.open(encoding="latin-1") as text:
        for line in text:
            yield line.rstrip("\r\n").split(separator)


def as_it_is(delimiter: str = ",") -> Callable[[Path], RowsOfFields]:
    """Returns the `make` of a csv file with a header, which keeps all values."""
    return lambda path: table(path, delimiter)


def member(name: str, delimiter: str = ",") -> Callable[[Path], RowsOfFields]:
    """Returns the `make` of a csv file with a header in an archive."""
    return lambda path: zipped(path, name, delimiter)


def with_header(header: Sequence[str], rows: RowsOfFields) -> Iterator[Sequence[str]]:
    """Yields a header, then rows."""
    yield header
    yield from rows


def shuffled(
    make: Callable[..., RowsOfFields], by: str | None = None
) -> Callable[..., RowsOfFields]:
    """Returns a `make` whose rows come in a random order, the same for everyone.

    The first rows then train and the last ones test, whatever roles a schema gives the columns: a
    random split by the schema itself would change with the role of any column.

    Args:
        make: yields the header, then the rows.
        by: column; rows with the same value of it stay together. None shuffles single rows.
    """

    def rows(*paths: Path) -> Iterator[Sequence[str]]:
        header, *body = make(*paths)
        # Versions of Python agree on the numbers of random(), not on the orders of shuffle().
        generator = random.Random(0)
        keys = [generator.random() for _ in body]
        if by is not None:
            column = header.index(by)
            of_value: defaultdict[str, float] = defaultdict(generator.random)
            keys = [of_value[row[column]] for row in body]
        order = sorted(range(len(body)), key=keys.__getitem__)
        yield from with_header(header, (body[number] for number in order))

    return rows


def in_order(
    make: Callable[..., RowsOfFields], column: str, time: Callable[[str], Any]
) -> Callable[..., RowsOfFields]:
    """Returns a `make` whose rows come in time order; rows of one time keep their order.

    Args:
        make: yields the header, then the rows.
        column: column of the times.
        time: converts the text of a time to a value that can be compared.
    """

    def rows(*paths: Path) -> Iterator[Sequence[str]]:
        header, *body = make(*paths)
        number = header.index(column)
        yield from with_header(header, sorted(body, key=lambda row: time(row[number])))

    return rows
