# SPDX-License-Identifier: Apache-2.0
"""Fields of ratings: ids, ratings, and times in the forms that occur in practice.

In the kernel, rating_fields.h reads them to the same values.
"""

import datetime
import re
import struct
from typing import Literal, NamedTuple, get_args

from preproc.clicks.schema.row_format import Column, FieldType, RowFormat
from preproc.clicks.schema.time_rule import TimeRule

RatingReason = Literal[
    "columns", "quote", "encoding", "user", "item", "rating", "timestamp", "json"
]
RATING_REASONS: tuple[RatingReason, ...] = get_args(RatingReason)
"""Reasons to reject a row of ratings: a wrong number of fields, wrong quotes, or for the first bad
field `encoding` (not printable UTF-8) or the role of its column; `json` for a line that is not an
object."""

AnyTime = Literal["any", "any_real", "any_digits"]
ANY_TIMES: tuple[AnyTime, ...] = get_args(AnyTime)
"""Formats of times: plain numbers or dates, as whole numbers or as floats; with `any_digits`,
numbers are dates written as digits."""

MAX_ID_CHARACTERS = 128
RATING_END = 1000
DIGITS = r"(?:0|[1-9][0-9]{0,17})"
NAME = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}"
TOKEN = r'[^\x00-\x20",\x7f-\x9f\ud800-\udfff]{1,128}'
NUMBER = r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
TIME = r"-?(?:[0-9]{1,18}|[1-8][0-9]{18})(?:\.[0-9]{1,18})?"
ID_PATTERNS: dict[FieldType, str] = {"digits": DIGITS, "name": NAME, "token": TOKEN}

_MOST_NUMBER_CHARACTERS = 64
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f]")
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in ID_PATTERNS.items()}
_NUMBER, _TIME = re.compile(NUMBER), re.compile(TIME)
_EXPONENT = re.compile(r"-?[0-9]{1,2}(?:\.[0-9]{1,18})?[eE]\+?[0-9]{1,2}")
_DIGITS_OF_DATE = re.compile("([0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2})?)?")
_CLOCK = (
    "(?P<H>[0-9]{2})(?:"
    "(?::(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]+))?)?)"
    "|(?:(?P<M2>[0-9]{2})(?:(?P<S2>[0-9]{2})(?:[.,](?P<f2>[0-9]+))?)?))?"
)
_ZONE = (
    " ?(?:Z|(?P<sign>[+-])(?P<zH>[01][0-9]|2[0-3])(?:"
    "(?::(?P<zM>[0-5][0-9])(?::(?P<zS>[0-5][0-9]))?)"
    "|(?:(?P<zM2>[0-5][0-9])(?P<zS2>[0-5][0-9])?))?)"
)
_DATE = re.compile(
    "(?:(?P<Y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})"
    "|(?P<d2>[0-9]{2})\\.(?P<m2>[0-9]{2})\\.(?P<Y2>[0-9]{4}))"
    f"(?:[ -~]{_CLOCK}(?:{_ZONE})?)?"
)
_EPOCH = datetime.date(1970, 1, 1).toordinal()


class Moment(NamedTuple):
    """A point in time: its whole seconds (or other unit), and whether it has a fraction."""

    whole: int
    real: float
    has_fraction: bool


class Rating(NamedTuple):
    """The values of a row of ratings or titles; None or empty if there is no such column."""

    user: str = ""
    item: str = ""
    rating: float | None = None
    time: int | float | None = None
    title: str = ""


class WrongField(NamedTuple):
    """The reason to reject a row, and the index of the field at fault (-1: the whole row)."""

    reason: RatingReason
    number: int


def rating_fields(row: bytes, row_format: RowFormat) -> list[bytes] | None:
    """Returns the fields of a row; see `RowFormat.fields`.

    If there is a title and fields have no quotes, surplus delimiters belong to the title.
    """
    fields = row_format.fields(row)
    surplus = 0 if fields is None else len(fields) - len(row_format.columns)
    roles = [column.role for column in row_format.columns]
    if fields is None or surplus <= 0 or row_format.quote or "title" not in roles:
        return fields
    first = roles.index("title")
    end = first + surplus + 1
    return [*fields[:first], row_format.delimiter.join(fields[first:end]), *fields[end:]]


def read_rating(row: bytes, row_format: RowFormat) -> Rating | WrongField:
    """Returns the values of a row of ratings, or why it is rejected."""
    fields = rating_fields(row, row_format)
    if fields is None:
        return WrongField("json" if row_format.is_json else "quote", -1)
    if len(fields) != len(row_format.columns):
        return WrongField("columns", -1)
    values: dict[str, str | int | float] = {}
    for number, (field, column) in enumerate(zip(fields, row_format.columns, strict=True)):
        if column.role == "ignored":
            continue
        value = _value(field, column)
        if value is None:
            role: RatingReason = column.role  # type: ignore[assignment]
            return WrongField(role if is_printable(field) else "encoding", number)
        values["time" if column.role == "timestamp" else column.role] = value
    return Rating(**values)  # type: ignore[arg-type]


def is_printable(field: bytes) -> bool:
    """Returns True for UTF-8 without control characters."""
    try:
        return _UNPRINTABLE.search(field.decode()) is None
    except UnicodeDecodeError:
        return False


def _value(field: bytes, column: Column) -> str | int | float | None:
    if not is_printable(field):
        return None
    text = field.decode()
    if column.role == "title":
        return text
    if column.role in ("user", "item"):
        return text if _PATTERNS[column.type].fullmatch(text) else None
    if column.role == "rating":
        fits = len(text) <= _MOST_NUMBER_CHARACTERS and _NUMBER.fullmatch(text)
        rating = float(text) + 0.0 if fits else -1.0
        return rating if 0 <= rating < RATING_END else None
    assert column.time is not None
    return read_time(text, column.time)


def read_time(text: str, rule: TimeRule) -> int | float | None:
    """Returns a time of ratings; None if it is not valid.

    It is a whole number for `any` and `any_digits`, else seconds as a float.
    """
    if rule.format not in ANY_TIMES:
        milliseconds = rule.milliseconds(text.encode())
        return None if milliseconds is None else milliseconds / 1000
    if rule.format == "any_digits" and _TIME.fullmatch(text):
        moment = date_of_digits(text)
    else:
        moment = _plain(text) or _date(text) or _exponent(text)
    if moment is None or (moment.has_fraction and rule.format != "any_real"):
        return None
    return moment.real if rule.format == "any_real" else moment.whole


def _plain(text: str) -> Moment | None:
    if not _TIME.fullmatch(text):
        return None
    whole, _, decimals = text.partition(".")
    real = float(text) if decimals else float(int(whole))
    return Moment(int(whole), real + 0.0, bool(decimals.strip("0")))


def _exponent(text: str) -> Moment | None:
    if not _EXPONENT.fullmatch(text):
        return None
    seconds = float(text)
    return _plain(str(int(seconds)) if seconds.is_integer() else f"{seconds:.6f}")


def has_decimals(text: str) -> bool:
    """Returns True for a number with a point, or a date with a fraction of a second."""
    moment = _date(text) or _exponent(text)
    return "." in text if _TIME.fullmatch(text) else moment is not None and moment.has_fraction


def date_of_digits(text: str) -> Moment | None:
    """Returns the time of digits such as 20240112, 202401120915 or 20240112091500, else None."""
    match = _DIGITS_OF_DATE.fullmatch(text)
    return match and _moment([int(part or 0) for part in match.groups()])


def _date(text: str) -> Moment | None:
    match = _DATE.fullmatch(text.removesuffix(" UTC"))
    if match is None:
        return None
    part = {name.removesuffix("2"): value for name, value in match.groupdict().items() if value}
    micros = int(part.get("f", "")[:6].ljust(6, "0"))
    hours, minutes, seconds = (int(part.get(name, 0)) for name in ("zH", "zM", "zS"))
    zone = 3600 * hours + 60 * minutes + seconds
    civil = [int(part.get(name, 0)) for name in "YmdHMS"]
    return _moment(civil, micros, -zone if part.get("sign") == "-" else zone)


def _moment(civil: list[int], micros: int = 0, zone: int = 0) -> Moment | None:
    try:
        time = datetime.datetime(*civil)  # type: ignore[arg-type]
    except ValueError:
        return None
    days = time.toordinal() - _EPOCH
    whole = 86400 * days + 3600 * time.hour + 60 * time.minute + time.second - zone
    return Moment(whole, (10**6 * whole + micros) / 10**6, micros > 0)


def order_key(time: float) -> int:
    """Returns an integer that sorts like the float."""
    bits: int = struct.unpack("<q", struct.pack("<d", time + 0.0))[0]  # no negative zero
    return bits ^ (2**63 - 1) if bits < 0 else bits
