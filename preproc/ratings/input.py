# SPDX-License-Identifier: Apache-2.0
"""Finds the ratings file of a run; detects or refuses its format."""

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
"""Fraction of the times that are dates of digits, if the others are faults."""
_LISTS_ROWS = 5000

_FLOAT_ID = re.compile(r"[0-9]+\.0+|[0-9](?:\.[0-9]+)?[eE]\+?[0-9]+")
_ASIN = re.compile(r"(?:B[0-9A-Z]{9}|[0-9]{9}[0-9X])")


def find_files(job: RatingsJob) -> tuple[InputFile, ...]:
    """Finds the ratings file of a run, or the parts of a folder, read as csv.

    Raises:
        PreprocError: it is missing, ambiguous, empty, or of an unsupported compression.
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
                f"`input` {path}: must name one ratings file, found {listed}; give the path of the "
                "file itself"
            )
        if not present:
            return _opened_parts(job, path)
        path = present[0]
    return (_opened(job, path),)


def _opened_parts(job: RatingsJob, folder: Path) -> tuple[InputFile, ...]:
    """Opens the parts of a folder but those of no byte."""
    parts = tuple(part for part in parts_of(folder) if part.stat().st_size)
    if not parts:
        raise PreprocError(f"`input` {folder}: none of its files holds a row")
    files = [_opened(job, part) for part in parts]
    if any(isinstance(file, TableFile) and file.has_fractions for file in files):
        # Times are written alike in all parts.
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
    """Returns a table as text of the columns that are used.

    Raises:
        PreprocError: the table lacks one, or none of its names are known.
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
    """Returns the formats of a table or of objects, which go by their names.

    Raises:
        PreprocError: the file lacks one, or none of its names are known.
    """
    if job.column_names is not None:
        _check_names(file, job.column_names, names)
        return _named(job, [*job.column_names.values()])
    known = [f for f in job.formats if f.goes_with(names)]
    if not known:
        raise _untold_names(file, "has columns", names)
    return [f for f in known if f.used == known[0].used]


def _named(job: RatingsJob, seen: Sequence[str]) -> list[RatingsFormat]:
    """Returns formats of csv with the columns that `columns` names.

    Raises:
        PreprocError: there are none.
    """
    by_type = {f.id_type: f for f in job.formats if f.is_csv}
    if not by_type:
        raise PreprocError(f"`columns` is for csv files; `format` is {job.format}")
    return [with_names(f, job.column_names or {}, seen) for f in by_type.values()]


def _check_names(file: InputFile, names: Mapping[RatingsColumn, str], seen: Sequence[str]) -> None:
    """Refuses names that are not those of a file.

    Raises:
        PreprocError: names the first one.
    """
    for name in names.values():
        if seen.count(name) != 1:
            raise PreprocError(
                f"`columns`: {file.path} must have the name {name!r} once, and has "
                f"{', '.join(n or repr(n) for n in seen)}. Name the columns as the file does: "
                f"{NAMED}",
                setting="columns",
                path=file.path,
            )


def _untold_names(file: InputFile, what: str, names: Sequence[str]) -> PreprocError:
    """Returns the error of a file whose columns are not known."""
    untold = " (no name tells it; without, histories are in the order of the file)"
    times = "" if TIMESTAMP in names_by_column(names) else untold
    return PreprocError(
        f"{file.path}: {what} of unknown names: {', '.join(n or repr(n) for n in names)}. A log of "
        "clicks, with rows that are none, is for `recsys-recipes prepare clicks`. Needed here are "
        f"user and item, and rating and timestamp{times} where there are any: say which "
        f"columns these are, such as `columns` {suggestion(names)}"
    )


def first_lines(file: InputFile, count: int) -> list[bytes]:
    """Returns lines of a text, without their ends.

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
    """Returns a format as a file of a folder has it.

    Raises:
        PreprocError: it has another header.
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
            f"{layout.header.decode()}; write all parts with the same columns in the same order"
        )
    return layout


def detect_format(job: RatingsJob, files: tuple[InputFile, ...]) -> tuple[RatingsFormat, float]:
    """Detects format and mean row bytes from the first rows of the largest file.

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
                f"`columns` {job.columns}: the header of {file.path} says {order}; leave the flag "
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
            f"{show(rows[0])}; get the file again, or add the header above its rows, if these are "
            "its columns"
        )
    orders = {",".join(f.columns[:2]): f for f in candidates if f.is_csv and not f.needs_header}
    if best.is_csv and len(orders) > 1:
        best = _detect_order(job, file, orders, [r for r in rows if best.is_good(r)])
    elif job.columns != "auto":
        raise PreprocError(f"`columns` is for csv files; {file.path} is of format {best.name}")
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
            "categories), which `recsys-recipes prepare criteo` reads; needed are ratings: user, "
            "item, rating and time",
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
    return PreprocError(f"{message}. Give another file, or name its `format`")


def _candidates(job: RatingsJob, file: InputFile, rows: list[bytes]) -> list[RatingsFormat]:
    """Returns the formats that the settings allow.

    Raises:
        PreprocError: `format` has no ids of the wanted type, or no such columns.
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
            f"`id_type` {job.id_type}: files of format {job.format} have other ids; leave it out, "
            "or write the file as csv"
        )
    return typed


def _check_first_line(
    job: RatingsJob, file: InputFile, line: bytes, best: RatingsFormat, *, any_good: bool
) -> None:
    """Refuses a header of other names.

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
            form = f"line 1 is a header, and format {best.name} has none"
            raise PreprocError(_told(file, form, "tail -n +2"))
        return
    raise _untold_names(file, "line 1 looks like a header", seen)


def _closest(formats: list[RatingsFormat], rows: list[bytes]) -> list[RatingsFormat]:
    """Sorts formats by how far they read the first row, farthest first.

    The message about that row is then on what is wrong in it, not on a neighbour's rule for ids.
    """
    return sorted(formats, key=lambda f: f.good_fields(rows[0]) if rows else 0, reverse=True)


def _check_ids(job: RatingsJob, file: InputFile, best: RatingsFormat, rows: list[bytes]) -> None:
    """Refuses ids that are whole numbers on their way through floats.

    Raises:
        PreprocError: all users or all items of the first rows are.
    """
    if job.id_type == "string":
        return
    values = [value for value in map(best.read, rows) if isinstance(value, Rating)]
    for column in (USER, ITEM):
        ids = [getattr(value, column) for value in values]
        if ids and all(map(_FLOAT_ID.fullmatch, ids)):
            has_types = any(layout.id_type == "digits" for layout in job.source.formats)
            raise PreprocError(
                f"{file.path}: each {column} of the first rows is a whole number as a float, such "
                f"as {ids[0]}, and larger ones lose digits so. Write them as integers (pandas: "
                f"frame.astype({{NAME: 'Int64'}}) before to_csv)"
                + (", or take them as text with `id_type` string" if has_types else "")
            )


def _with_time_kind(layout: RatingsFormat, rows: list[bytes]) -> RatingsFormat:
    """Reads times as dates of digits if most are; as floats if some have decimals."""
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
    """Returns True for 20240112, 202401120915 and 20240112091500, which are dates."""
    return date_of_digits(text) is not None and "1970" <= text < "2200"


def lists_as_items(file: InputFile, layout: RatingsFormat) -> str:
    """Returns the note about items that look like lists, and the command that splits them.

    Empty if none do.
    """
    layout = of_file(layout, file)
    values = map(layout.read, first_lines(file, _LISTS_ROWS))
    items = dict.fromkeys(v.item for v in values if isinstance(v, Rating))
    separator = list_separator(items)
    if not separator:
        return ""
    example = next(item for item in items if separator in item)
    note = (
        f"{file.path}: items such as {show(example.encode())} look like lists; each whole text is "
        "an item as it is. If they are lists, write a row for each element"
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
    """Detects whether users or items, which are ASINs or ISBNs, come first."""
    if job.columns != "auto":
        return orders[job.columns]
    values = [v for v in map(orders["user,item"].read, rows) if isinstance(v, Rating)]
    first = all(_ASIN.fullmatch(v.user) for v in values)
    second = all(_ASIN.fullmatch(v.item) for v in values)
    if first == second:
        alike = "both" if first else "neither"
        raise PreprocError(
            f"{file.path}: which column holds the items cannot be told from the first rows "
            f"({alike} look like ASINs: {show(rows[0])}); say it with `columns` user,item or "
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
    """Returns an error message: a form, and the command that converts it."""
    columns = f" with `columns` {suggestion(names)}" if names else ""
    return (
        f"{file.path}: {form}. Convert it:\n  {_piped(file, command, '_converted')}\nand give the "
        f"new file{columns}"
    )


def _piped(file: InputFile, command: str, ending: str) -> str:
    """Returns the command that sends a file through another one, to a new file."""
    made = file.path.with_name(f"{file.path.name.partition('.')[0]}{ending}")
    source, reader = shlex.quote(str(file.path)), _READERS[file.compression]
    return f"{reader} {source} | {command} > {shlex.quote(str(made))}"
