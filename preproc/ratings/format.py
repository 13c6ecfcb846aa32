# SPDX-License-Identifier: Apache-2.0
"""Row grammars of the ratings formats, and diagnoses of rejected rows.

Rows of plain ASCII without quotes have a grammar, a regular expression over their bytes that Python
and RE2 read alike, so that Arrow can read them. `RatingsFormat.read` judges and reads all others.
"""

import dataclasses
import itertools
import json
import re
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

from preproc.files.raw.spelled_numbers import spelling_remedy

Column = Literal["user", "item", "rating", "timestamp"]
USER, ITEM, RATING, TIMESTAMP = "user", "item", "rating", "timestamp"
IGNORED: Literal["ignored"] = "ignored"
"""A field that nothing is read from."""
ROW = "row"
"""Column of the number of a valid row in its file, from 0."""

RejectReason = Literal["columns", "encoding", "user", "item", "rating", "timestamp", "json"]
REJECT_REASONS: tuple[RejectReason, ...] = get_args(RejectReason)

INTEGER_ID = r"(?:0|[1-9][0-9]{0,17})"
TOKEN_ID = r'[^\x00-\x20",\x7f-\x9f]{1,128}'
NAME_ID = r'(?! )[^\x00-\x1f",\x7f-\x9f]{1,128}(?<! )'
QUOTED_ID = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}"
ASCII_TOKEN_ID = r"[!#-+\--~]{1,128}"
"""The tokens of ASCII alone, for a grammar of bytes."""
_ASCII_FIELD = r"[ !#-+\--~]*"
WHOLE_TIMESTAMP_PATTERN = r"-?(?:[0-9]{1,18}|[1-8][0-9]{18})"
RATING_PATTERN = r"[0-9]{1,3}(?:\.[0-9]{1,4})?"
TIMESTAMP_PATTERN = rf"{WHOLE_TIMESTAMP_PATTERN}(?:\.[0-9]{{1,18}})?"

TIMESTAMP_LIMIT = 9 * 10**18
RATING_LIMIT = 1000

JSON_KEYS: dict[str, Column] = {
    "reviewerID": "user",
    "asin": "item",
    "overall": "rating",
    "unixReviewTime": "timestamp",
}

_UTF8 = (
    r"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    r"|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
"""A character that is not ASCII, in bytes."""
_JSON_STRING = rf'"(?:[ !#-\[\]-\x7f]|\\["\\/bfnrtu]|{_UTF8})*"'
_JSON_TOKENS = rf"(?:[ \t\r:,\]}}0-9.eE+-]|true|false|null|{_JSON_STRING})*"
_PLAIN_JSON = rf"\{{(?:{_JSON_TOKENS}[\[{{]){{0,20}}{_JSON_TOKENS}\}}"
"""Objects that Arrow reads as `load_json` does, or not at all: it takes NaN, Inf, text of other
encodings and any depth."""
_MAX_JSON_DEPTH = 100
_NO_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\[\]{}"]')

_ID_RULES = {
    INTEGER_ID: "a whole number without sign or leading zeros, of at most 18 digits",
    TOKEN_ID: "1 to 128 printable characters without space, comma and double quote",
    NAME_ID: "1 to 128 printable characters; comma, double quote and a space at an end only in "
    "quotes",
    QUOTED_ID: "1 to 128 printable characters",
}
_RULES = {
    "rating": "a number such as 4 or 3.5, at least 0 and below 1000",
    "timestamp": "a number below 9 * 10^18 or a date such as 2024-12-31, 2024-12-31T23:59:00Z (ISO "
    "8601) or 31.12.2024 23:59",
}
_NEW_FRACTION = (
    "has a fraction, which none of the first rows has: write a time of the first 100 rows with a "
    "point, such as 7.0"
)
_BAD_QUOTES = (
    "quotes do not go around a whole field, or go on over the line end; a quote in a quoted field "
    "is doubled"
)
_SHOWN_LENGTH = 60

_PYTHON_DICTIONARY = re.compile(rb"\s*\{\s*u?'")
_CSV_FIELD = re.compile(rb'(?:"((?:[^"]|"")*)"|([^",]*))(,|\Z)')
_EXPONENT = re.compile(r"-?[0-9]{1,2}(?:\.[0-9]{1,18})?[eE][+]?[0-9]{1,2}")
_NUMBER = re.compile(TIMESTAMP_PATTERN)
_DATE_OF_DIGITS = re.compile("([0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2})?)?")
_NOTHING = r"\b\B"
"""Matches no text."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_GERMAN_DATE = re.compile(r"^([0-9]{2})\.([0-9]{2})\.([0-9]{4})")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f]")
_PATTERNS: dict[Column, str] = {"rating": RATING_PATTERN, "timestamp": TIMESTAMP_PATTERN}


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """The values of a row; None without such a column."""

    user: str
    item: str
    rating: float | None = None
    timestamp: int | float | None = None


class Fault(NamedTuple):
    """The reason for a rejected row, and an explanation."""

    reason: RejectReason
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsFormat:
    """The grammar and columns of a ratings file.

    Attributes:
        name: name in flags, messages and the manifest.
        separator: text between fields; empty for JSON lines.
        columns: columns of the fields, in order, some perhaps `IGNORED`.
        id_pattern: regular expression of user and item ids.
        headers: possible first lines, which are skipped.
        needs_header: the first line must be one of `headers`.
        dates_of_digits: times are dates such as 20240112, perhaps with hhmm or hhmmss after them.
        real_times: some of the first timestamps have decimals, so all are ordered as 64-bit floats.
        names: names of the columns in the header of a csv file.
    """

    name: str
    separator: str = ""
    columns: tuple[Column | Literal["ignored"], ...] = ("user", "item", "rating", "timestamp")
    id_pattern: str = INTEGER_ID
    headers: tuple[bytes, ...] = ()
    needs_header: bool = False
    dates_of_digits: bool = False
    real_times: bool = False
    names: tuple[str, ...] = ()

    @property
    def is_json(self) -> bool:
        """Whether a row is a JSON object."""
        return not self.separator

    @property
    def read_columns(self) -> tuple[Column, ...]:
        """Columns that are read, in their order."""
        return tuple(column for column in self.columns if column != IGNORED)

    @property
    def has_timestamps(self) -> bool:
        """Whether rows have timestamps; files of others are in time order."""
        return "timestamp" in self.columns

    def is_header(self, line: bytes) -> bool:
        """Returns True if a first line is a header, quoted or not."""
        return line.replace(b'"', b"") in self.headers

    def grammar(self) -> str:
        """Returns the regular expression of plain rows, without their line ends.

        Rows that do not match may be good all the same, see `read`. For JSON it is one of tokens,
        that leaves their order to Arrow.
        """
        if self.is_json:
            return _PLAIN_JSON
        ids = self.id_pattern if self.id_pattern == INTEGER_ID else ASCII_TOKEN_ID
        times = TIMESTAMP_PATTERN if self.real_times else WHOLE_TIMESTAMP_PATTERN
        times = _NOTHING if self.dates_of_digits else times  # `read` turns them into seconds
        patterns = {RATING: RATING_PATTERN, TIMESTAMP: times, IGNORED: _ASCII_FIELD}
        return re.escape(self.separator).join(patterns.get(c, ids) for c in self.columns)

    def good_fields(self, row: bytes) -> int:
        """Counts the columns before the one at fault."""
        value_or_fault = self.read(row)
        if isinstance(value_or_fault, Values):
            return len(self.columns)
        names: tuple[str, ...] = self.columns
        return names.index(value_or_fault.reason) if value_or_fault.reason in names else -1

    def read(self, row: bytes) -> Values | Fault:
        """Returns the values of a row, or why it is rejected."""
        return self._read_json(row) if self.is_json else self._read_text(row)

    def is_good(self, row: bytes) -> bool:
        """Returns True if a row is one of this format."""
        return isinstance(self.read(row), Values)

    def _read_text(self, row: bytes) -> Values | Fault:
        if self.separator == ",":
            fields = split_csv(row)
        else:
            fields = [(field, False) for field in row.split(self.separator.encode())]
        if fields is None:
            return Fault("columns", _BAD_QUOTES)
        if len(fields) != len(self.columns):
            wanted = _SEPARATOR_NAMES[self.separator].join(self.columns)
            noun = "field" if len(fields) == 1 else "fields"
            needed = f"{len(fields)} {noun}, needed are {len(self.columns)}: {wanted}"
            return Fault("columns", needed)
        texts: dict[str, str] = {}
        for column, (field, is_quoted) in zip(self.columns, fields, strict=True):
            if column == IGNORED:
                continue
            try:
                text = field.decode()
            except UnicodeDecodeError:
                text = "\0"
            if _UNPRINTABLE.search(text):
                unprintable = f"{column} {show(field)} holds bytes that are not printable UTF-8"
                return Fault("encoding", unprintable)
            if column == TIMESTAMP:
                text = plain_time(spelled_date(text) if self.dates_of_digits else text)
            pattern = _PATTERNS.get(column) or self.id_pattern
            if is_quoted and pattern == NAME_ID:
                pattern = QUOTED_ID
            if re.fullmatch(pattern, text) is None:
                rule = _RULES.get(column) or _ID_RULES[pattern]
                remedy = self._remedy(column, text)
                return Fault(column, f"{column} {show(field)} must be {rule}{remedy}")
            texts[column] = text
        rating = float(texts[RATING]) if RATING in texts else None
        if TIMESTAMP not in texts:
            return Values(texts[USER], texts[ITEM], rating)
        whole, _, decimals = texts[TIMESTAMP].partition(".")
        return self._values(
            texts[USER],
            texts[ITEM],
            rating,
            float(texts[TIMESTAMP]) if decimals else int(whole),
            has_fraction=bool(decimals.strip("0")),
        )

    def _remedy(self, column: Column, text: str) -> str:
        """Returns what to do about a text that breaks the rule of its column, if it is known."""
        if column == TIMESTAMP and self.dates_of_digits:
            return "; those of the first rows are dates such as 20240112"
        spelling = spelling_remedy([text]) if column == RATING else ""
        return f"; {spelling}" if spelling else ""

    def _read_json(self, row: bytes) -> Values | Fault:
        value_or_fault = load_json(row)
        if isinstance(value_or_fault, str):
            return Fault("json", value_or_fault)
        values: list[Any] = []
        for key, column in JSON_KEYS.items():
            value = value_or_fault.get(key)
            if value is None:
                return Fault("columns", f"{column} is missing (key {key})")
            text = show(json.dumps(value).encode())
            if column in ("user", "item"):
                if not isinstance(value, str) or re.fullmatch(QUOTED_ID, value) is None:
                    rule = f"{column} {text} (key {key}) must be {_ID_RULES[QUOTED_ID]}"
                    return Fault(column, rule)
            elif not _is_number(value, column):
                return Fault(column, f"{column} {text} (key {key}) must be {_RULES[column]}")
            values.append(value)
        user, item, rating, timestamp = values
        return self._values(
            user, item, float(rating), timestamp, has_fraction=timestamp != int(timestamp)
        )

    def _values(
        self,
        user: str,
        item: str,
        rating: float | None,
        timestamp: int | float,
        *,
        has_fraction: bool,
    ) -> Values | Fault:
        if not self.real_times:
            if has_fraction:
                return Fault("timestamp", f"timestamp {timestamp!r} {_NEW_FRACTION}")
            timestamp = int(timestamp)
        return Values(user, item, rating, timestamp)


def is_date_of_digits(number: int) -> bool:
    """Returns True for 20240112, 202401120915 and 20240112091500, which are dates."""
    date = spelled_date(str(number))
    return bool(date) and plain_time(date) != date and "1970" <= date < "2200"


def spelled_date(text: str) -> str:
    """Writes a date of digits by ISO 8601, and no number at all; other texts stay."""
    match = _DATE_OF_DIGITS.fullmatch(text)
    if match is None:
        return "" if _NUMBER.fullmatch(text) else text
    year, month, day, *clock = match.groups()
    hour, minute, second = (part or "00" for part in clock)
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}"


def plain_time(text: str) -> str:
    """Writes ISO 8601, 31.12.2024 09:15 or an exponent as seconds since 1970.

    A time without a zone is UTC.
    """
    date = _GERMAN_DATE.sub(r"\3-\2-\1", text).removesuffix(" UTC")
    if _EXPONENT.fullmatch(text):
        seconds = float(text)
    elif _DATE.match(date):
        try:
            time = datetime.fromisoformat(date)
        except ValueError:
            return text
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    else:
        return text
    return str(int(seconds)) if seconds.is_integer() else f"{seconds:.6f}"


def split_csv(row: bytes) -> list[tuple[bytes, bool]] | None:
    """Splits a row by RFC 4180.

    Returns:
        The fields, and whether each was quoted; None if the quotes are wrong.
    """
    if b'"' not in row:
        return [(field, False) for field in row.split(b",")]
    fields, start, separator = [], 0, b","
    while separator:
        match = _CSV_FIELD.match(row, start)
        if match is None:
            return None
        quoted, plain, separator = match.groups()
        is_quoted = quoted is not None
        fields.append((quoted.replace(b'""', b'"') if is_quoted else plain, is_quoted))
        start = match.end()
    return fields


def _is_number(value: Any, column: Column) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < RATING_LIMIT if column == "rating" else abs(value) < TIMESTAMP_LIMIT


def _json_depth(row: bytes) -> int:
    brackets = _NO_BRACKETS.sub(b"", row)
    return max(itertools.accumulate(1 if b in b"[{" else -1 for b in brackets), default=0)


def _json_integer(digits: str) -> int | float:
    """Reads a whole number; as a float what Python may refuse."""
    return int(digits) if len(digits) < _SHOWN_LENGTH else float(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def load_json(row: bytes) -> dict[str, Any] | str:
    """Returns the object of a line, or an error message."""
    try:
        if row.count(b"[") + row.count(b"{") > _MAX_JSON_DEPTH < _json_depth(row):
            raise ValueError(f"nested deeper than {_MAX_JSON_DEPTH} levels")
        pairs = json.loads(
            row.decode(),
            object_pairs_hook=tuple,
            parse_int=_json_integer,
            parse_constant=_refuse_constant,
        )
    except ValueError as error:
        if _PYTHON_DICTIONARY.match(row):
            return "a Python dictionary, not JSON; get the JSON file, or convert it"
        return f"not JSON ({error})"
    if not isinstance(pairs, tuple):
        return "not a JSON object"
    names = [name for name, _ in pairs if name in JSON_KEYS]
    return dict(pairs) if len(names) == len(set(names)) else f"one of {names} stands there twice"


def show(value: bytes) -> str:
    """Quotes bytes for a message, at most 60 characters of them."""
    text = value.decode(errors="backslashreplace")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f"'{text}'" if len(text) <= _SHOWN_LENGTH else f"'{text[:_SHOWN_LENGTH]}...'"


_SEPARATOR_NAMES = {",": ",", "::": "::", "\t": " TAB ", " ": " SPACE "}

TEXT = RatingsFormat(name="text", separator=" ", columns=("user", "item"), id_pattern=TOKEN_ID)
"""`user item` lines in time order, as SASRec has them."""

MOVIELENS_CSV = RatingsFormat(
    name="csv",
    separator=",",
    headers=(b"userId,movieId,rating,timestamp",),
    needs_header=True,
)
MOVIELENS_TOKEN_CSV = dataclasses.replace(MOVIELENS_CSV, id_pattern=NAME_ID)
"""Files of that form with ids of other kinds, if no id of the first rows is a number."""
MOVIELENS_DAT = RatingsFormat(name="dat", separator="::")
MOVIELENS_UDATA = RatingsFormat(name="udata", separator="\t")

AMAZON_CSV = RatingsFormat(
    name="csv",
    separator=",",
    id_pattern=NAME_ID,
    headers=(b"user_id,parent_asin,rating,timestamp", b"user_id,asin,rating,timestamp"),
)
"""The files of 2014 (without header) and 2023 (with one)."""
AMAZON_ITEM_FIRST_CSV = RatingsFormat(
    name="csv",
    separator=",",
    columns=("item", "user", "rating", "timestamp"),
    id_pattern=NAME_ID,
)
"""The files of 2018."""
AMAZON_JSON = RatingsFormat(name="json", id_pattern=TOKEN_ID)
