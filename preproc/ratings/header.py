# SPDX-License-Identifier: Apache-2.0
"""Headers of csv files, and columns by name."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from preproc.clicks.schema import rating_fields
from preproc.clicks.schema.row_format import Column, split_fields
from preproc.clicks.schema.time_rule import TimeRule
from preproc.files.errors import PreprocError
from preproc.files.raw.text_files import DELIMITERS
from preproc.ratings.format import IGNORED, ITEM, TIMESTAMP, USER, RatingsColumn, RatingsFormat

COLUMNS: tuple[RatingsColumn, ...] = get_args(RatingsColumn)
NAMED = ",".join(f"{column}=NAME" for column in COLUMNS)
"""The form of `columns` that names columns of a header."""

_UDATA_FIELDS = 4
_TYPICAL_NAMES: dict[RatingsColumn, str] = {
    "user": "(user|reviewer|customer|session|visitor)(id|name)?",
    "item": "(item|movie|artist|product|track|song|book|anime|article)(id)?|(parent)?asin|isbn|sku",
    "rating": "(book)?ratings?|overall|stars|score",
    "timestamp": "(unix|review|event|rating)*(timestamp|time|date|datetime)|when|createdat",
}
"""Patterns for the letters of unambiguous names; a suffix such as `:token` is ignored."""


def parse_names(columns: str, orders: Iterable[str]) -> dict[RatingsColumn, str]:
    """Parses column names from a setting such as `user=u,item=i`.

    Raises:
        PreprocError: the setting does not name user and item, or names a column twice.
    """
    pairs = [entry.partition("=") for entry in columns.split(",")]
    names: dict[RatingsColumn, str] = {
        c: name for key, _, name in pairs for c in COLUMNS if c == key
    }
    distinct = len(set(names.values())) == len(pairs) == len(names) and all(names.values())
    if not distinct or USER not in names or ITEM not in names:
        raise PreprocError(
            f"`columns` must be {' | '.join([*orders, NAMED])}, where NAME is a name in the header "
            f"and rating and timestamp are optional; got {columns!r}"
        )
    return names


def names_of(line: bytes, delimiter: str, quote: bytes = b'"') -> list[str]:
    """Returns the fields of a header line, which are names; empty if its quotes are wrong."""
    fields = split_fields(line, delimiter.encode(), quote) or []
    return [field.decode(errors="backslashreplace") for field in fields]


def header_names(line: bytes, delimiter: str = ",") -> list[str]:
    """Returns the names in a header line; empty if the line is not a header.

    A header has several names. They are all different, and none is a number. One may be empty, as
    for the index in files from pandas.
    """
    names = names_of(line, delimiter)
    if line.startswith((b"{", b"[", b"<")):  # JSON or HTML
        return []
    is_text = all(n.isprintable() and not re.fullmatch(rating_fields.TIME, n) for n in names)
    return names if is_text and 1 < len(names) == len(set(names)) else []


def delimiter_of(line: bytes) -> str:
    """Returns the delimiter of a csv file from its first line; a comma for MovieLens' u.data."""
    delimiter = max(DELIMITERS, key=lambda each: line.count(each.encode()))
    count = line.count(delimiter.encode())
    is_udata = delimiter == "\t" and count == _UDATA_FIELDS - 1 and not header_names(line, "\t")
    return "," if is_udata else delimiter


def with_names(
    layout: RatingsFormat, names: Mapping[RatingsColumn, str], seen: Sequence[str]
) -> RatingsFormat:
    """Returns a csv format whose columns are those of a header, with roles from `names`."""
    column_of = {name: column for column, name in names.items()}
    columns = []
    for name in seen:
        role = column_of.get(name, IGNORED)
        kind = layout.id_type if role in (USER, ITEM) else "hex"
        time = TimeRule("any") if role == TIMESTAMP else None
        columns.append(Column(name=name, role=role, type=kind, time=time))
    return layout.with_columns(columns)


def names_by_column(seen: Sequence[str]) -> dict[RatingsColumn, str]:
    """Chooses columns by the names in a header only.

    A column that several names fit, and a user or item column that no name fits, is called NAME.
    """
    told = {column: [n for n in seen if _fits_name(column, n)] for column in COLUMNS}
    return {
        column: names[0] if len(names) == 1 else "NAME"
        for column, names in told.items()
        if names or column in (USER, ITEM)
    }


def suggestion(seen: Sequence[str]) -> str:
    """Suggests a value of `columns` for a header with unknown names."""
    return shlex.quote(",".join(f"{c}={name}" for c, name in names_by_column(seen).items()))


def unread_times(layout: RatingsFormat) -> list[str]:
    """Returns the names of columns that look like times but are not read."""
    if layout.has_timestamps:
        return []
    return [name for name in layout.names if _fits_name("timestamp", name)]


def _fits_name(column: RatingsColumn, name: str) -> bool:
    letters = re.sub("[^a-z]", "", name.lower().partition(":")[0])
    return re.fullmatch(_TYPICAL_NAMES[column], letters) is not None
