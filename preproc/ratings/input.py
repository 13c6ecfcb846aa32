# SPDX-License-Identifier: Apache-2.0
"""Finds the ratings file of a run, and detects or refuses its format."""

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from preproc.clicks.kernel.row_writer import write_cells
from preproc.clicks.schema.grammar import reject_reason
from preproc.clicks.schema.rating_fields import Rating, date_of_digits, has_decimals
from preproc.clicks.schema.row_format import criteo_format
from preproc.files.errors import PreprocError
from preproc.files.input_file import (
    MAX_LINE_BYTES,
    PLAIN_OR_COMPRESSED,
    InputFile,
    line_too_long,
    without_mark,
)
from preproc.files.raw.blank_end import WHITESPACE, row_blocks
from preproc.files.raw.lists_in_text import list_separator
from preproc.files.raw.objects import is_object, keys_of
from preproc.files.raw.parts import parts_of
from preproc.files.raw.tables import TableColumn, TableFile, open_table, table_schema
from preproc.files.raw.text_files import as_text
from preproc.ratings.format import (
    ITEM,
    RATING,
    TIMESTAMP,
    USER,
    Fault,
    RatingsColumn,
    RatingsFormat,
    show,
)
from preproc.ratings.header import (
    NAMED,
    delimiter_of,
    header_names,
    names_by_column,
    names_of,
    suggestion,
    with_names,
)
from preproc.ratings.job import RatingsJob
from preproc.ratings.parse import RATINGS_FILE

SAMPLE_ROWS = 100
_MOST = 0.5
"""If more than this fraction of times are dates of digits, the other times are errors."""
_LISTS_ROWS = 5000

_FLOAT_ID = re.compile(r"[0-9]+\.0+|[0-9](?:\.[0-9]+)?[eE]\+?[0-9]+")
_ASIN = re.compile(r"(?:B[0-9A-Z]{9}|[0-9]{9}[0-9X])")


def find_files(job: RatingsJob) -> tuple[InputFile, ...]:
    """Finds the ratings file of a run, or the parts of a folder.

    Raises:
        PreprocError: the file is missing, ambiguous or empty, or its compression is not supported.
    """
    path = job.input
    if not path.exists():
        raise PreprocError(f"`input` {path}: no such file or folder; give a ratings file")
    if path.is_dir():
        names = [n + suffix for n in job.source.file_names for suffix in ("", ".gz")]
        present = [path / n for n in names if (path / n).is_file()]
        if len(present) > 1:
            listed = ", ".join(f.name for f in present)
            raise PreprocError(
                f"`input` {path}: must hold one ratings file, found {listed}; give the path of one"
            )
        if not present:
            return _opened_parts(job, path)
        path = present[0]
    return (_opened(job, path),)


def _opened_parts(job: RatingsJob, folder: Path) -> tuple[InputFile, ...]:
    """Opens the parts of a folder, except empty files."""
    parts = tuple(part for part in parts_of(folder) if part.stat().st_size)
    if not parts:
        raise PreprocError(f"`input` {folder}: none of its files has a row")
    files = [_opened(job, part) for part in parts]
    if any(isinstance(file, TableFile) and file.has_fractions for file in files):
        # All parts must write times the same way.
        files = [
            dataclasses.replace(file, has_fractions=True) if isinstance(file, TableFile) else file
            for file in files
        ]
    return tuple(files)


def _opened(job: RatingsJob, path: Path) -> InputFile:
    if not path.is_file():
        raise PreprocError(
            f"`input` {path}: is not a regular file; give text, {PLAIN_OR_COMPRESSED}"
        )
    if path.stat().st_size == 0:
        raise PreprocError(f"{path}: is empty; get the file again")
    file = as_text(InputFile.open(path))
    return _open_table(job, file) if file.is_table else file


def _open_table(job: RatingsJob, file: InputFile) -> TableFile:
    """Opens a table as text, with only the columns that are used.

    Raises:
        PreprocError: the table lacks a column, or none of its names is known.
    """
    used = _by_names(job, file, table_schema(file).names)[0].used
    columns = [
        TableColumn(
            name=name,
            is_id=column in (USER, ITEM),
            is_number=column == RATING,
            in_seconds=column == TIMESTAMP,
        )
        for name, column in used.items()
    ]
    return open_table(file, columns, write_cells)


def _by_names(job: RatingsJob, file: InputFile, names: Sequence[str]) -> list[RatingsFormat]:
    """Returns the formats of a table or of objects, chosen by the names of the columns.

    Raises:
        PreprocError: the file lacks a column, or none of its names is known.
    """
    if job.column_names is not None:
        _check_names(file, job.column_names, names)
        return _named(job, [*job.column_names.values()])
    known = [f for f in job.formats if f.goes_with(names)]
    if not known:
        raise _untold_names(file, "has columns", names)
    return [f for f in known if f.used == known[0].used]


def _named(job: RatingsJob, seen: Sequence[str]) -> list[RatingsFormat]:
    """Returns csv formats with the columns that `columns` names.

    Raises:
        PreprocError: there is no csv format.
    """
    by_type = {f.id_type: f for f in job.formats if f.is_csv}
    if not by_type:
        raise PreprocError(f"`columns` applies only to csv files, but `format` is {job.format}")
    return [with_names(f, job.column_names or {}, seen) for f in by_type.values()]


def _check_names(file: InputFile, names: Mapping[RatingsColumn, str], seen: Sequence[str]) -> None:
    """Refuses column names that a file does not have exactly once.

    Raises:
        PreprocError: names the first such column.
    """
    for name in names.values():
        if (count := seen.count(name)) != 1:
            has = f"{count} columns" if count else "no column"
            raise PreprocError(
                f"`columns`: {file.path} has {has} {name!r}; its columns are "
                f"{', '.join(n or repr(n) for n in seen)}. Write {NAMED}, with these names",
                setting="columns",
                path=file.path,
            )


def _untold_names(file: InputFile, what: str, names: Sequence[str]) -> PreprocError:
    """Returns the error for a file whose columns are unknown."""
    untold = " (no column looks like it; without one, histories are in the order of the file)"
    times = "" if TIMESTAMP in names_by_column(names) else untold
    return PreprocError(
        f"{file.path}: {what} of unknown names: {', '.join(n or repr(n) for n in names)}. For a "
        "log of clicks, use `recsys-recipes prepare clicks`. For ratings, say which columns are "
        f"user and item, and rating and timestamp{times} if there are any, such as "
        f"`columns` {suggestion(names)}"
    )


def first_lines(file: InputFile, count: int) -> list[bytes]:
    """Returns the first lines of a text, without line ends.

    Raises:
        PreprocError: a line is longer than 1 MiB.
    """
    rest, lines = b"", list[bytes]()
    for block in without_mark(row_blocks(file, WHITESPACE))[1]:
        *whole, rest = (rest + block).split(b"\n")
        lines += whole
        if len(rest) > MAX_LINE_BYTES:
            offset = sum(len(line) + 1 for line in lines)
            raise line_too_long(file.path, offset, RATINGS_FILE)
        if len(lines) >= count:
            break
    else:
        lines += [rest] if rest else []
    return [line.removesuffix(b"\r") for line in lines[:count]]


def of_file(layout: RatingsFormat, file: InputFile) -> RatingsFormat:
    """Adapts a format to a file: table, objects, or the delimiter of a csv file.

    Raises:
        PreprocError: the file has another header.
    """
    line = next(iter(first_lines(file, 1)), b"")
    seen: Sequence[str] = ()
    if isinstance(file, TableFile):
        layout, seen = layout.as_table(), [column.name for column in file.columns]
    elif is_object(line):
        return layout.as_objects()
    elif layout.is_csv or layout.goes_by_name:
        layout = layout.with_dialect(delimiter_of(line) if line else layout.delimiter)
    is_header = layout.rows.names == (*seen,) if seen else layout.is_header(line)
    if line and layout.needs_header and not is_header:
        raise PreprocError(
            f"{file.path}: its first line is {show(line)}, but the header of the largest file is "
            f"{layout.header.decode()}; all parts need the same columns in the same order"
        )
    return layout


def detect_format(job: RatingsJob, files: tuple[InputFile, ...]) -> tuple[RatingsFormat, float]:
    """Detects the format and the mean row length in bytes from the start of the largest file.

    Raises:
        PreprocError: no row is valid, or the order of columns is ambiguous.
    """
    file = max(files, key=lambda file: file.text_bytes)
    rows = first_lines(file, SAMPLE_ROWS)
    if not rows:
        raise PreprocError(f"{file.path}: holds no row; get the file again")
    length = sum(len(row) + 1 for row in rows) / len(rows)
    candidates = _candidates(job, file, rows)
    named = [f for f in candidates if f.goes_by_name or f.is_header(rows[0])]
    if named:
        rows = rows[named[0].needs_header :]
        fitting = [f for f in named if any(map(f.is_good, rows))]
        best = (fitting or _closest(named, rows))[0]
        order = ",".join(best.columns[:2])
        if job.column_names is None and job.columns not in ("auto", order):
            raise PreprocError(
                f"`columns` {job.columns}: the header of {file.path} has {order}; leave the flag "
                "out"
            )
        _check_ids(job, file, best, rows)
        return _with_time_kind(best, rows), length
    good = [sum(map(f.is_good, rows)) for f in candidates]
    best = candidates[int(np.argmax(good))]
    if not max(good):
        best = _closest(candidates, rows)[0]
    _check_first_line(job, file, rows[0], best, any_good=bool(max(good)))
    if not max(good):
        raise _nothing_fits(job, file, rows, candidates, best)
    if best.needs_header:
        raise PreprocError(
            f"{file.path}: line 1 must be the header {best.header.decode()}, found "
            f"{show(rows[0])}; get the file again or, if these are its columns, add the header"
        )
    orders = {",".join(f.columns[:2]): f for f in candidates if f.is_csv and not f.needs_header}
    if best.is_csv and len(orders) > 1:
        best = _detect_order(job, file, orders, [r for r in rows if best.is_good(r)])
    elif job.columns != "auto":
        raise PreprocError(
            f"`columns` applies only to csv files, but {file.path} has format {best.name}"
        )
    _check_ids(job, file, best, rows)
    return _with_time_kind(best, rows), length


def _nothing_fits(
    job: RatingsJob,
    file: InputFile,
    rows: list[bytes],
    candidates: list[RatingsFormat],
    best: RatingsFormat,
) -> PreprocError:
    """Returns the error of a file that no format fits."""
    if any(reject_reason(row, criteo_format()) is None for row in rows):
        return PreprocError(
            f"`input` {file.path}: is a click log in Criteo's format (a label, 13 integers, 26 "
            "categories), which `recsys-recipes prepare criteo` reads; give a file of ratings: "
            "user, item, rating and time",
            setting="input",
            path=file.path,
        )
    reason, text = cast(Fault, best.read(rows[0]))
    formats = ", ".join(dict.fromkeys(f.name for f in candidates))
    message = (
        f"{file.path}: none of the first {len(rows)} rows fits a format of {job.source.name} "
        f"({formats}). Line 1 is {show(rows[0])}; as {best.name}: {text} ({reason})"
    )
    is_csv = best.is_csv and best.rows.delimiter in rows[0]
    if is_csv and not rows[0].startswith((b"{", b"[", b"<")):
        return PreprocError(f"{message}. If these are other columns: {_with_header(file, rows[0])}")
    return PreprocError(f"{message}. Give another file, or set its `format`")


def _candidates(job: RatingsJob, file: InputFile, rows: list[bytes]) -> list[RatingsFormat]:
    """Returns the formats that the settings allow.

    Raises:
        PreprocError: `format` has no ids of the requested type, or no such columns.
    """
    formats = list(job.formats)
    if isinstance(file, TableFile):
        names = [column.name for column in file.columns]
        formats = [f.as_table() for f in _by_names(job, file, names)]
    elif is_object(rows[0]):
        keys = keys_of(file.path, rows)
        names = [key for key, value in keys.items() if not isinstance(value, (list, tuple))]
        formats = [f.as_objects() for f in _by_names(job, file, names)]
    else:
        delimiter = delimiter_of(rows[0])
        if job.column_names is not None:
            seen = names_of(rows[0], delimiter)
            formats = _named(job, seen)
            _check_names(file, job.column_names, seen)
        if delimiter != "," and any(f.is_csv for f in formats):
            formats = [f.with_dialect(delimiter) for f in formats if f.is_csv]
    if job.id_type == "auto":
        return formats
    wanted = "digits" if job.id_type == "integer" else "name"
    typed = [f for f in formats if f.id_type == wanted]
    if not typed:
        raise PreprocError(
            f"`id_type` {job.id_type}: files of format {job.format} have other ids; leave the "
            "setting out, or write the file as csv"
        )
    return typed


def _check_first_line(
    job: RatingsJob, file: InputFile, line: bytes, best: RatingsFormat, *, any_good: bool
) -> None:
    """Refuses a header that does not belong to the format.

    Raises:
        PreprocError: the line looks like a header.
    """
    seen = header_names(line, best.delimiter)
    if not seen or best.is_good(line):
        return
    if any_good and not best.needs_header and job.max_bad_fraction > 0:
        return
    if not best.is_csv:
        if any_good:
            form = f"line 1 is a header, but format {best.name} has no header"
            raise PreprocError(_told(file, form, "tail -n +2"))
        return
    raise _untold_names(file, "line 1 looks like a header", seen)


def _closest(formats: list[RatingsFormat], rows: list[bytes]) -> list[RatingsFormat]:
    """Sorts formats by how far they read the first row, farthest first.

    So the message about that row says what is wrong with it, and not how ids differ in a similar
    format.
    """
    return sorted(formats, key=lambda f: f.good_fields(rows[0]) if rows else 0, reverse=True)


def _check_ids(job: RatingsJob, file: InputFile, best: RatingsFormat, rows: list[bytes]) -> None:
    """Refuses ids that are whole numbers written as floats.

    Raises:
        PreprocError: all users or all items of the first rows are such ids.
    """
    if job.id_type == "string":
        return
    values = [value for value in map(best.read, rows) if isinstance(value, Rating)]
    for column in (USER, ITEM):
        ids = [getattr(value, column) for value in values]
        if ids and all(map(_FLOAT_ID.fullmatch, ids)):
            has_types = any(layout.id_type == "digits" for layout in job.source.formats)
            raise PreprocError(
                f"{file.path}: each {column} of the first rows is a whole number written as a "
                f"float, such as {ids[0]}; large ids lose digits that way. Write them as integers "
                f"(pandas: frame.astype({{NAME: 'Int64'}}) before to_csv)"
                + (", or read them as text with `id_type` string" if has_types else "")
            )


def _with_time_kind(layout: RatingsFormat, rows: list[bytes]) -> RatingsFormat:
    """Chooses how to read times: dates of digits if most are, floats if some have decimals."""
    if layout.time.format != "any" or not layout.has_timestamps:
        return layout
    real = layout.with_time("any_real")
    good = {row for row in rows if real.is_good(row)}
    at = layout.columns.index(TIMESTAMP)
    fields = (real.rows.fields(row) or [] for row in rows if row in good)
    times = [own[at].decode() for own in fields]
    if any(map(has_decimals, times)):
        return real
    dates = sum(map(_is_date_of_digits, times))
    return layout.with_time("any_digits") if dates > _MOST * len(times) else layout


def _is_date_of_digits(text: str) -> bool:
    """Returns True for dates such as 20240112, 202401120915 and 20240112091500."""
    return date_of_digits(text) is not None and "1970" <= text < "2200"


def lists_as_items(file: InputFile, layout: RatingsFormat) -> str:
    """Returns a note about items that look like lists, with a command that splits them.

    Empty if there are none.
    """
    layout = of_file(layout, file)
    values = map(layout.read, first_lines(file, _LISTS_ROWS))
    items = dict.fromkeys(v.item for v in values if isinstance(v, Rating))
    separator = list_separator(items)
    if not separator:
        return ""
    example = next(item for item in items if separator in item)
    note = (
        f"{file.path}: items such as {show(example.encode())} look like lists, but each whole text "
        "is read as one item. If they are lists, write a row for each element"
    )
    delimiter = layout.delimiter
    if len(delimiter) != 1 or layout.goes_by_name:
        return note
    at = layout.columns.index(ITEM)
    code = (
        "import csv, sys; csv.writer(sys.stdout).writerows("
        f"[*x[:{at}], y.strip(), *x[{at + 1}:]] for x in csv.reader(sys.stdin, "
        f"delimiter={json.dumps(delimiter)}) if x for y in x[{at}].split({json.dumps(separator)}))"
    )
    return f"{note}:\n  {_piped(file, f'python3 -c {shlex.quote(code)}', '_items.csv')}"


def _detect_order(
    job: RatingsJob, file: InputFile, orders: dict[str, RatingsFormat], rows: list[bytes]
) -> RatingsFormat:
    """Detects whether users or items come first; items are ASINs or ISBNs."""
    if job.columns != "auto":
        return orders[job.columns]
    values = [v for v in map(orders["user,item"].read, rows) if isinstance(v, Rating)]
    first = all(_ASIN.fullmatch(v.user) for v in values)
    second = all(_ASIN.fullmatch(v.item) for v in values)
    if first == second:
        alike = "both" if first else "neither"
        raise PreprocError(
            f"{file.path}: the first rows do not show which column holds the items "
            f"({alike} look like ASINs: {show(rows[0])}); give `columns` user,item or "
            "`columns` item,user"
        )
    return orders["item,user" if first else "user,item"]


def _with_header(file: InputFile, line: bytes) -> str:
    """Returns an error message for a csv file that lacks a header."""
    delimiter = delimiter_of(line)
    names = [f"c{number}" for number, _ in enumerate(names_of(line, delimiter), 1)]
    header = delimiter.replace("\t", r"\t").replace("\x01", r"\001").join(names)
    return _told(file, "has no header", f"(printf '{header}\\n'; cat)", names)


_READERS = {"none": "cat", "gzip": "zcat", "zstd": "zstdcat", "bzip2": "bzcat", "xz": "xzcat"}


def _told(file: InputFile, form: str, command: str, names: Sequence[str] = ()) -> str:
    """Returns an error message: what is wrong with the file, and a command that converts it."""
    columns = f" with `columns` {suggestion(names)}" if names else ""
    return (
        f"{file.path}: {form}. Convert it:\n  {_piped(file, command, '_converted')}\nand give the "
        f"new file{columns}"
    )


def _piped(file: InputFile, command: str, ending: str) -> str:
    """Returns a command line that pipes a file through `command` into a new file."""
    made = file.path.with_name(f"{file.path.name.partition('.')[0]}{ending}")
    source, reader = shlex.quote(str(file.path)), _READERS[file.compression]
    return f"{reader} {source} | {command} > {shlex.quote(str(made))}"
