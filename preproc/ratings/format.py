# SPDX-License-Identifier: Apache-2.0
"""Row grammars of the ratings formats, and diagnoses of rejected rows.

The grammar is a regular expression over the bytes of a row, which Python and RE2 read alike.
"""

import dataclasses
import json
import re
from typing import Any, Literal, get_args

Column = Literal["user", "item", "rating", "timestamp"]
USER, ITEM, RATING, TIMESTAMP = "user", "item", "rating", "timestamp"
ROW = "row"
"""Column of the number of a valid row in its file, from 0."""

RejectReason = Literal["columns", "encoding", "user", "item", "rating", "timestamp", "json"]
REJECT_REASONS: tuple[RejectReason, ...] = get_args(RejectReason)

INTEGER_ID = r"(?:0|[1-9][0-9]{0,17})"
TOKEN_ID = r"[!#-+\--~]{1,128}"
RATING_PATTERN = r"[0-9]{1,3}(?:\.[0-9]{1,4})?"
TIMESTAMP_PATTERN = r"-?[0-9]{1,18}"

TIMESTAMP_LIMIT = 10**18
RATING_LIMIT = 1000

JSON_KEYS: dict[str, Column] = {
    "reviewerID": "user",
    "asin": "item",
    "overall": "rating",
    "unixReviewTime": "timestamp",
}

_ID_RULES = {
    INTEGER_ID: "a whole number without sign or leading zeros, of at most 18 digits",
    TOKEN_ID: "1 to 128 printable ASCII characters without space, comma and double quote",
}
_RULES = {
    "rating": "a number such as 4 or 3.5, at least 0 and below 1000",
    "timestamp": "a whole number of at most 18 digits",
}
_SHOWN_BYTES = 60


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsFormat:
    """The grammar and columns of a ratings file.

    Attributes:
        name: name in flags, messages and the manifest.
        separator: text between fields; empty for JSON lines.
        columns: columns of the fields, in order.
        id_pattern: regular expression of user and item ids.
        headers: possible first lines, which are skipped.
        needs_header: the first line must be one of `headers`.
    """

    name: str
    separator: str = ""
    columns: tuple[Column, ...] = ("user", "item", "rating", "timestamp")
    id_pattern: str = INTEGER_ID
    headers: tuple[bytes, ...] = ()
    needs_header: bool = False

    @property
    def is_json(self) -> bool:
        """Whether a row is a JSON object."""
        return not self.separator

    @property
    def has_timestamps(self) -> bool:
        """Whether rows have timestamps; files of others are in time order."""
        return "timestamp" in self.columns

    def pattern(self, column: Column) -> str:
        """Returns the regular expression of a field."""
        return {RATING: RATING_PATTERN, TIMESTAMP: TIMESTAMP_PATTERN}.get(column, self.id_pattern)

    def grammar(self) -> str:
        """Returns the regular expression of a row without its line end.

        For JSON it only requires an object; `is_good` checks the fields.
        """
        if self.is_json:
            return r"\{[^\n]*\}"
        return re.escape(self.separator).join(self.pattern(c) for c in self.columns)

    def is_good(self, row: bytes) -> bool:
        """Checks a row against the grammar, with the fields of JSON."""
        if self.is_json:
            return _json_fault(row) is None
        return re.fullmatch(self.grammar().encode(), row) is not None

    def diagnose(self, row: bytes) -> tuple[RejectReason, str]:
        """Returns the reason for a rejected row, and an explanation."""
        if self.is_json:
            return _json_fault(row) or ("json", "the object cannot be read")
        fields = row.split(self.separator.encode())
        if len(fields) != len(self.columns):
            wanted = _SEPARATOR_NAMES[self.separator].join(self.columns)
            noun = "field" if len(fields) == 1 else "fields"
            return "columns", f"{len(fields)} {noun}, needed are {len(self.columns)}: {wanted}"
        for column, field in zip(self.columns, fields, strict=True):
            if any(not 0x20 <= byte <= 0x7E for byte in field):
                return "encoding", f"{column} {show(field)} holds bytes that are not printable"
            if re.fullmatch(self.pattern(column).encode(), field) is None:
                rule = _RULES.get(column) or _ID_RULES[self.id_pattern]
                return column, f"{column} {show(field)} must be {rule}"
        raise AssertionError("a row breaks the grammar, yet each of its fields fits")


def _json_fault(row: bytes) -> tuple[RejectReason, str] | None:
    """Returns the reason and explanation for invalid JSON, None if valid."""
    value_or_fault = _read_json(row)
    if isinstance(value_or_fault, str):
        return "json", value_or_fault
    for key, column in JSON_KEYS.items():
        value = value_or_fault.get(key)
        if value is None:
            return "columns", f"{column} is missing (key {key})"
        text = show(json.dumps(value).encode())
        if column in ("user", "item"):
            if not isinstance(value, str) or re.fullmatch(TOKEN_ID, value) is None:
                return column, f"{column} {text} (key {key}) must be {_ID_RULES[TOKEN_ID]}"
        elif not _is_number(value, column):
            return column, f"{column} {text} (key {key}) must be {_RULES[column]}"
    return None


def _is_number(value: Any, column: Column) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if column == "rating":
        return 0 <= value < RATING_LIMIT
    return isinstance(value, int) and abs(value) < TIMESTAMP_LIMIT


def _read_json(row: bytes) -> dict[str, Any] | str:
    """Returns the object of a line, or an error message."""
    try:
        value = json.loads(row)
    except (ValueError, RecursionError) as error:
        if row.lstrip().startswith(b"{'"):
            return "a Python dictionary, not JSON; get the JSON file, or convert it"
        return f"not JSON ({error})"
    return value if isinstance(value, dict) else "not a JSON object"


def show(value: bytes) -> str:
    """Quotes bytes for a message, at most 60 characters of them."""
    text = value.decode("latin-1").encode("unicode_escape").decode("ascii")
    return f"'{text}'" if len(text) <= _SHOWN_BYTES else f"'{text[:_SHOWN_BYTES]}...'"


_SEPARATOR_NAMES = {",": ",", "::": "::", "\t": " TAB ", " ": " SPACE "}

TEXT = RatingsFormat(name="text", separator=" ", columns=("user", "item"), id_pattern=TOKEN_ID)
"""`user item` lines in time order, as SASRec has them."""

MOVIELENS_CSV = RatingsFormat(
    name="csv",
    separator=",",
    headers=(b"userId,movieId,rating,timestamp",),
    needs_header=True,
)
MOVIELENS_DAT = RatingsFormat(name="dat", separator="::")
MOVIELENS_UDATA = RatingsFormat(name="udata", separator="\t")

AMAZON_CSV = RatingsFormat(
    name="csv",
    separator=",",
    id_pattern=TOKEN_ID,
    headers=(b"user_id,parent_asin,rating,timestamp", b"user_id,asin,rating,timestamp"),
)
"""The files of 2014 (without header) and 2023 (with one)."""
AMAZON_ITEM_FIRST_CSV = RatingsFormat(
    name="csv",
    separator=",",
    columns=("item", "user", "rating", "timestamp"),
    id_pattern=TOKEN_ID,
)
"""The files of 2018."""
AMAZON_JSON = RatingsFormat(name="json", id_pattern=TOKEN_ID)
