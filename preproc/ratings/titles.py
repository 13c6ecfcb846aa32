# SPDX-License-Identifier: Apache-2.0
"""Titles of items in the files that MovieLens ships beside its ratings.

u.item      1|Toy Story (1995)|01-Jan-1995||http://...     ml-100k, Latin-1
movies.dat  1::Toy Story (1995)::Animation|Comedy          ml-1m in Latin-1, ml-10m in UTF-8
movies.csv  1,"Amélie (2001)",Comedy|Romance               ml-20m and later, UTF-8, RFC 4180
"""

import csv
import dataclasses
import io
import re
from collections.abc import Iterator
from pathlib import Path

from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, without_mark
from preproc.files.raw.tables import TableColumn, open_table, table_schema, write_csv
from preproc.ratings.format import show
from preproc.ratings.job import MOVIELENS, RatingsJob

NO_TITLES = "none"
BESIDE_RATINGS = "auto"
FILES_BESIDE = {"csv": "movies.csv", "dat": "movies.dat", "udata": "u.item"}
"""Format of ratings -> name of the file of titles in the same folder."""

_CSV_COLUMNS = ["movieId", "title"]
_FIRST_FIELD = re.compile(r"[^|:,\s\"]+(\||::)")


@dataclasses.dataclass(frozen=True, slots=True)
class Titles:
    """Titles of a catalogue, by the raw ids of its items.

    Attributes:
        file: the file that was read.
        by_raw_id: raw id -> title, never empty.
    """

    file: InputFile
    by_raw_id: dict[str, str]

    def of(self, raw_ids: list[str]) -> list[str]:
        """Returns a title for each item, empty where there is none."""
        return [self.by_raw_id.get(raw_id, "") for raw_id in raw_ids]


def titles_of(job: RatingsJob, ratings: InputFile, layout: str) -> Titles | None:
    """Reads the titles that belong to a ratings file; None without any.

    Raises:
        PreprocError: the file is missing, or not one of titles.
    """
    if job.titles == NO_TITLES or job.source is not MOVIELENS:
        return None
    if job.titles != BESIDE_RATINGS:
        path = Path(job.titles)
        if not path.is_file():
            raise PreprocError(
                f"`titles` {path}: no such file; name one, or {BESIDE_RATINGS} or {NO_TITLES}"
            )
        return _read(InputFile.open(path))
    name = FILES_BESIDE.get(layout)
    beside = [ratings.path.with_name(f"{name}{suffix}") for suffix in ("", ".gz") if name]
    present = [path for path in beside if path.is_file()]
    return _read(InputFile.open(present[0])) if present else None


def _read(file: InputFile) -> Titles:
    if file.is_table:
        columns = [TableColumn(name=_CSV_COLUMNS[0], is_id=True), TableColumn(name=_CSV_COLUMNS[1])]
        if lacking := {*_CSV_COLUMNS}.difference(table_schema(file).names):
            raise _refusal(file, 1, f"the table lacks {', '.join(sorted(lacking))}")
        file = open_table(file, columns, write_csv)
    by_raw_id: dict[str, str] = {}
    for number, raw_id, title in _rows(file):
        if raw_id in by_raw_id:
            raise _refusal(file, number, f"the item {show(raw_id.encode())} is there twice")
        by_raw_id[raw_id] = title
    return Titles(file, {raw_id: title for raw_id, title in by_raw_id.items() if title})


def _rows(file: InputFile) -> Iterator[tuple[int, str, str]]:
    """Yields (line number, raw id, title); the first line tells the format."""
    head, _, _ = next(without_mark(file.blocks())[1], b"").partition(b"\n")
    first_line = head.decode("latin-1")
    separator = _FIRST_FIELD.match(first_line)
    if separator is not None:
        return _separated_rows(file, separator[1])
    if "movieId" in first_line:
        return _csv_rows(file)
    raise _refusal(
        file, 1, f"{show(head)} begins neither an u.item, nor a movies.dat, nor a movies.csv"
    )


def _separated_rows(file: InputFile, separator: str) -> Iterator[tuple[int, str, str]]:
    text = b"".join(without_mark(file.blocks())[1])
    try:
        lines = text.decode().split("\n")
    except UnicodeDecodeError:
        lines = text.decode("latin-1").split("\n")
    if not lines[-1]:
        del lines[-1]
    for number, line in enumerate(lines, 1):
        raw_id, first, rest = line.rstrip("\r").partition(separator)
        # A title may hold "::", the genres behind it do not.
        split = rest.rpartition if separator == "::" else rest.partition
        title, second, _ = split(separator)
        if not raw_id or not first or not second:
            raise _refusal(file, number, f"{show(line.encode())} lacks an id, title or genres")
        yield number, raw_id, title


def _csv_rows(file: InputFile) -> Iterator[tuple[int, str, str]]:
    try:
        text = b"".join(file.blocks()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _refusal(file, line, f"is not UTF-8 ({error.reason})") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader)
        if header[: len(_CSV_COLUMNS)] != _CSV_COLUMNS:
            raise _refusal(file, 1, f"the header must begin {','.join(_CSV_COLUMNS)}")
        for row in reader:
            if len(row) != len(header) or not row[0]:
                raise _refusal(
                    file, reader.line_num, f"{len(row)} fields, needed are {','.join(header)}"
                )
            yield reader.line_num, row[0], row[1]
    except csv.Error as error:
        raise _refusal(file, reader.line_num, f"not CSV: {error}") from error


def _refusal(file: InputFile, line: int, text: str) -> PreprocError:
    return PreprocError(
        f"{file.path}, line {line}: {text}; repair it, or do without titles: `titles` {NO_TITLES}"
    )
