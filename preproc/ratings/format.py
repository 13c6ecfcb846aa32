# SPDX-License-Identifier: Apache-2.0
"""Formats of ratings files, from their schemas, and diagnoses of rejected rows."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from preproc.clicks.schema.rating_fields import (
    Rating,
    RatingReason,
    WrongField,
    rating_fields,
    read_rating,
)
from preproc.clicks.schema.read import load_ratings_schema
from preproc.clicks.schema.row_format import Column, FieldType, RowFormat
from preproc.clicks.schema.schema import RatingsSchema
from preproc.clicks.schema.time_rule import TimeRule
from preproc.files.raw.objects import JsonError, cells_of_object
from preproc.files.raw.spelled_numbers import spelling_remedy

RatingsColumn = Literal["user", "item", "rating", "timestamp"]
USER, ITEM, RATING, TIMESTAMP = "user", "item", "rating", "timestamp"
IGNORED: Literal["ignored"] = "ignored"
"""Role of a field that is not read."""
ROW = "row"
"""Column with the number of a valid row in its file, from 0."""

_SCHEMAS = Path(__file__).with_name("formats")

_ID_RULES: dict[FieldType, str] = {
    "digits": "a whole number without sign or leading zeros, of at most 18 digits",
    "token": "1 to 128 printable characters without space, comma and double quote",
    "name": "1 to 128 printable characters",
}
_RULES = {
    "rating": "a number such as 4 or 3.5, at least 0 and below 1000",
    "timestamp": "a number below 9 * 10^18 or a date such as 2024-12-31, 2024-12-31T23:59:00Z (ISO "
    "8601) or 31.12.2024 23:59",
}
_NEW_FRACTION = (
    "has a fraction, but no time of the first 100 rows has one: write one of those with a "
    "point, such as 7.0"
)
_BAD_QUOTES = (
    "quotes must enclose a whole field and close on the same line; double a quote inside a quoted "
    "field"
)
_SHOWN_LENGTH = 60
_SEPARATOR_NAMES = {"\t": " TAB ", " ": " SPACE "}


class Fault(NamedTuple):
    """The reason to reject a row, and an explanation."""

    reason: RatingReason
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsFormat:
    """The rows of a ratings file.

    Attributes:
        name: name in flags, messages and the manifest; for titles, the name of their file.
        rows: fields of a row, cells of a table, or keys of an object.
        titles: format of the item titles, in a file next to the ratings; None without titles.
        encoding: encoding of a text that is not UTF-8; only titles may set it.
    """

    name: str
    rows: RowFormat
    titles: "RatingsFormat | None" = None
    encoding: str = "utf-8"

    @property
    def delimiter(self) -> str:
        """Text between two fields."""
        return self.rows.delimiter.decode()

    @property
    def is_csv(self) -> bool:
        """Whether the file may have other columns and delimiters."""
        return self.name == "csv"

    @property
    def needs_header(self) -> bool:
        """Whether the first line holds the names of the columns."""
        return self.rows.has_header

    @property
    def goes_by_name(self) -> bool:
        """Whether columns are found by name, in any order."""
        return self.rows.is_table or self.rows.is_json

    @property
    def header(self) -> bytes:
        """The first line, without quotes."""
        return self.rows.delimiter.join(name.encode() for name in self.rows.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the fields in order; some may be `IGNORED`."""
        return tuple(column.role for column in self.rows.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns in the file; empty if the file has no names."""
        return self.rows.names if self.needs_header or self.rows.is_json else ()

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Columns that are read, in order."""
        return tuple(column for column in self.columns if column != IGNORED)

    @property
    def used(self) -> dict[str, str]:
        """Columns that are read, by name."""
        named = zip(self.rows.names, self.columns, strict=True)
        return {name: column for name, column in named if column != IGNORED}

    def goes_with(self, names: Collection[str]) -> bool:
        """Returns True if `names` contains every column that is read by name."""
        return self.needs_header and self.used.keys() <= set(names)

    @property
    def id_type(self) -> FieldType:
        """Type of the ids."""
        return self.rows.columns[self.columns.index(ITEM)].type

    @property
    def time(self) -> TimeRule:
        """How times are read; the rule for any format if there are none."""
        return next((c.time for c in self.rows.columns if c.time is not None), TimeRule("any"))

    @property
    def real_times(self) -> bool:
        """Whether times are ordered as 64-bit floats."""
        return self.time.format not in ("any", "any_digits")

    @property
    def dates_of_digits(self) -> bool:
        """Whether times are dates such as 20240112, optionally followed by hhmm or hhmmss."""
        return self.time.format == "any_digits"

    @property
    def has_timestamps(self) -> bool:
        """Whether rows have timestamps; other files are in time order."""
        return TIMESTAMP in self.columns

    def with_time(self, time_format: str) -> "RatingsFormat":
        """Returns the format with another format of times."""
        columns = (
            dataclasses.replace(c, time=TimeRule(time_format)) if c.role == TIMESTAMP else c
            for c in self.rows.columns
        )
        return self._with(columns=tuple(columns))

    def with_dialect(self, delimiter: str) -> "RatingsFormat":
        """Returns a csv format with another delimiter.

        In files with tabs, quotes are usually part of the text; in Hive's files they always are.
        """
        quote = b"" if delimiter in ("\t", "\x01") else b'"'
        has_header = self.needs_header or self.rows.is_json
        form: dict[str, Any] = {"is_table": False, "is_json": False, "has_header": has_header}
        return self._with(delimiter=delimiter.encode(), quote=quote, **form)

    def as_table(self) -> "RatingsFormat":
        """Returns the format for cells of a table, with the columns that are read."""
        return self._of_used(RowFormat.as_table)

    def as_objects(self) -> "RatingsFormat":
        """Returns the format for values of objects, with the columns that are read."""
        return self._of_used(RowFormat.as_objects)

    def _of_used(self, form: Callable[[RowFormat], RowFormat]) -> "RatingsFormat":
        used = tuple(column for column in self.rows.columns if column.role != IGNORED)
        return dataclasses.replace(self, rows=form(self._with(columns=used).rows))

    def with_ids(self, kind: FieldType) -> "RatingsFormat":
        """Returns the format with another type of ids."""
        columns = (
            dataclasses.replace(c, type=kind) if c.role in (USER, ITEM) else c
            for c in self.rows.columns
        )
        return self._with(columns=tuple(columns))

    def with_columns(self, columns: Sequence[Column]) -> "RatingsFormat":
        """Returns the format with a header of other columns."""
        return self._with(columns=tuple(columns), has_header=True)

    def _with(self, **changes: Any) -> "RatingsFormat":
        rows = dataclasses.replace(self.rows, **changes)
        rows = dataclasses.replace(rows, numbers=(0,) * len(rows.columns))
        return dataclasses.replace(self, rows=rows)

    def is_header(self, line: bytes) -> bool:
        """Returns True if a first line of text is the header, quoted or not."""
        names = b"".join(self.header.split(b'"'))
        return self.needs_header and line.replace(b'"', b"") == names

    def good_fields(self, row: bytes) -> int:
        """Returns how many columns are valid before the first wrong one."""
        value_or_fault = self.read(row)
        if isinstance(value_or_fault, Rating):
            return len(self.columns)
        reason = value_or_fault.reason
        return self.columns.index(reason) if reason in self.columns else -1

    def read(self, row: bytes) -> Rating | Fault:
        """Returns the values of a row, or why it is rejected."""
        read = read_rating(row, self.rows)
        return read if isinstance(read, Rating) else self._fault(row, read)

    def is_good(self, row: bytes) -> bool:
        """Returns True if a row is valid in this format."""
        return isinstance(self.read(row), Rating)

    def _fault(self, row: bytes, wrong: WrongField) -> Fault:
        fields = rating_fields(row, self.rows)
        if fields is None:
            return Fault(wrong.reason, _json_fault(row, self.rows) or _BAD_QUOTES)
        if wrong.reason == "columns":
            wanted = _SEPARATOR_NAMES.get(self.delimiter, self.delimiter).join(self.columns)
            noun = "field" if len(fields) == 1 else "fields"
            needed = f"{len(fields)} {noun} instead of {len(self.columns)}: {wanted}"
            return Fault("columns", needed)
        field, column = fields[wrong.number], self.rows.columns[wrong.number]
        shown = f"{column.role} {show(field)}{f' (key {column.name})' if self.rows.is_json else ''}"
        if wrong.reason == "encoding":
            unprintable = f"{shown} has bytes that are not printable UTF-8"
            return Fault("encoding", unprintable)
        text = field.decode()
        if column.role == TIMESTAMP and self._is_new_fraction(row):
            return Fault(wrong.reason, f"timestamp {text} {_NEW_FRACTION}")
        rule = _ID_RULES[column.type] if column.role in (USER, ITEM) else self._rule(column.role)
        remedy = self._remedy(column.role, text)
        return Fault(wrong.reason, f"{shown} must be {rule}{remedy}")

    def _rule(self, role: str) -> str:
        is_own = role == TIMESTAMP and not self.time.format.startswith("any")
        return f"from 1970 to 2199, of the form {self.time.format}" if is_own else _RULES[role]

    def _is_new_fraction(self, row: bytes) -> bool:
        as_real = read_rating(row, self.with_time("any_real").rows)
        return self.time.format == "any" and isinstance(as_real, Rating)

    def _remedy(self, role: str, text: str) -> str:
        """Returns what to do about a text that is invalid in its column; empty if unknown."""
        if role == TIMESTAMP and self.dates_of_digits:
            return "; the times of the first rows are dates such as 20240112"
        spelling = spelling_remedy([text]) if role == RATING else ""
        return f"; {spelling}" if spelling else ""


@functools.cache
def formats_of(names: tuple[str, ...]) -> tuple[RatingsFormat, ...]:
    """Returns the formats of built-in schemas, by file name."""
    return tuple(f for name in names for f in load_formats(_SCHEMAS / f"{name}.yaml"))


def load_formats(path: Path) -> tuple[RatingsFormat, ...]:
    """Returns the formats of a schema: one or, if ids may have any type, whole numbers first.

    Raises:
        PreprocError: it is missing or wrong; the message names file, line and key.
    """
    schema = load_ratings_schema(path)
    layout = _of_schema(schema)
    return (layout.with_ids("digits"), layout) if schema.has_any_ids else (layout,)


def _of_schema(schema: RatingsSchema) -> RatingsFormat:
    titles = None if schema.titles is None else _of_schema(schema.titles)
    return RatingsFormat(
        name=schema.name, rows=schema.rows, titles=titles, encoding=schema.encoding
    )


def _json_fault(row: bytes, row_format: RowFormat) -> str:
    """Returns why a row is not a valid object; empty for rows of other forms."""
    try:
        if row_format.is_json:
            cells_of_object(row, row_format.separators)
    except JsonError as error:
        return str(error)
    return ""


def show(value: bytes) -> str:
    """Quotes bytes for a message, up to 60 characters."""
    text = value.decode(errors="backslashreplace")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f"'{text}'" if len(text) <= _SHOWN_LENGTH else f"'{text[:_SHOWN_LENGTH]}...'"
