# SPDX-License-Identifier: Apache-2.0
"""Columns of a log, and the fields of its raw rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from preproc.clicks.schema.time_rule import TIME_FEATURES, TimeRule
from preproc.files.raw.blank_end import LINE_ENDS
from preproc.files.raw.objects import JsonError, cells_of_object
from preproc.files.raw.tables import DELIMITER, ESCAPE, unescaped

Role = Literal[
    "ignored", "label", "numerical", "categorical", "timestamp", "categorical_list",
    "user", "item", "rating", "title",
]  # fmt: skip
ROLES: tuple[Role, ...] = get_args(Role)
"""In the order of their numbers in the kernel."""

FieldType = Literal["hex", "string", "int", "float", "digits", "name", "token"]
FIELD_TYPES: tuple[FieldType, ...] = get_args(FieldType)
"""In the order of their numbers in the kernel."""

KeyType = Literal["uint32", "int64", "text"]
KEY_TYPES: tuple[KeyType, ...] = get_args(KeyType)
"""Types of a column's categories, in the order of their numbers in the kernel."""

NUM_NUMERICAL = 13
NUM_CATEGORICAL = 26
"""Categorical features of Criteo's logs."""

MAX_FIELDS = 1000
"""The most fields of a row; the kernel keeps the ends of all fields for a batch of rows."""

MAX_FEATURES = 256
"""The most numerical features of a row, and likewise the most categorical ones."""


Transform = Literal["standardise", "log", "signed_log"]
TRANSFORMS: tuple[Transform, ...] = get_args(Transform)
"""In the order of their numbers in the kernel."""


class NumberRule(NamedTuple):
    """Transform of decimal numbers.

    - `log`: ln(max(x, minimum) + offset); a missing x is 0.
    - `standardise`: z = (x - mean) / deviation, within the range of float32; a missing x is the
      mean.
    - `signed_log`: ln(|z| + 1) with the sign of z.
    """

    transform: Transform = "standardise"
    minimum: float = 0.0
    offset: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0


AS_IT_IS = NumberRule()

Edges = Mapping[str, tuple[float, ...]]
"""Bin edges that were found, by column name."""

BLANKS = b" \t"
"""Characters that are ignored around an element of a list, or around its weight."""


class ListRule(NamedTuple):
    """How the lists of a column are read.

    Attributes:
        separator: one Latin-1 character between two elements.
        weight_separator: one character before the weight of each element; empty without weights.
        max_length: number of elements to keep of a longer list.
        keep: keep the `last` or the `first` elements.
        pooling: sum or average the vectors of a list.
    """

    separator: str
    weight_separator: str = ""
    max_length: int = 50
    keep: Literal["last", "first"] = "last"
    pooling: Literal["mean", "sum"] = "mean"


class SplitRule(NamedTuple):
    """Gives each row to a split, by time or hash.

    Attributes:
        kind: `time` or `random`.
        field: index of the field whose time or hash decides; None: the hash of the row.
        seed: seed of the hash.
        cuts: the least values of validation and of test rows.
        counts_train: categories are counted only in training rows.
    """

    kind: Literal["time", "random"]
    field: int | None
    seed: int
    cuts: tuple[int, int]
    counts_train: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of the file.

    Attributes:
        name: name in the header.
        role: `label`, `numerical`, `categorical`, `categorical_list`, `timestamp` or `ignored`; in
            ratings `user`, `item`, `rating`, `timestamp` or `ignored`; in titles `item`, `title` or
            `ignored`.
        frequency_limit: a category seen fewer times gets id 0.
        max_ids: only this many of the most frequent categories get an id; 0: no limit.
        type: how features are read.
        rule: transform of decimal numbers.
        buckets: hashes of categories are taken modulo this; 0 keeps the categories.
        missing: texts that stand for a missing value, besides an empty field.
        time: how a timestamp is read; None for other roles.
        list: how lists are read and pooled; None for other roles.
        group: rows with the same value form a group, for GAUC.
        vocabulary: columns with the same vocabulary share ids; empty: the column has its own.
        bins: ascending edges; how many of them are <= the number is also a categorical feature.
            None without bins, or before the edges are found.
        quantiles: number of bins whose edges are found in the counted rows; 0: edges are given.
    """

    name: str
    role: Role
    type: FieldType = "hex"
    rule: NumberRule = AS_IT_IS
    buckets: int = 0
    missing: tuple[str, ...] = ()
    frequency_limit: int = 0
    max_ids: int = 0
    time: TimeRule | None = None
    list: ListRule | None = None
    group: bool = False
    vocabulary: str = ""
    bins: tuple[float, ...] | None = None
    quantiles: int = 0

    @property
    def has_bins(self) -> bool:
        """Whether the number has bins, even if their edges are not found yet."""
        return self.bins is not None or self.lacks_edges

    @property
    def lacks_edges(self) -> bool:
        """Whether the edges of its bins are still to be found."""
        return self.quantiles > 0 and self.bins is None

    @property
    def derived(self) -> tuple["Column", ...]:
        """The categorical features derived from a timestamp, or from a number with bins."""
        if self.has_bins:
            return (Column(name=f"{self.name}_bin", role="categorical"),)
        return tuple(
            dataclasses.replace(self, name=f"{self.name}_{feature}", role="categorical", time=None)
            for feature in TIME_FEATURES
            if self.time is not None and feature in self.time.features
        )

    def is_missing(self, field: bytes) -> bool:
        """Returns True if a field has no value."""
        text = field.strip(BLANKS) if self.role == "categorical_list" else field
        return not text or (bool(self.missing) and text in map(str.encode, self.missing))

    @property
    def key_type(self) -> KeyType:
        """Type of the column's categories."""
        if self.type == "hex" or self.buckets:
            return "uint32"
        return "text" if self.type == "string" else "int64"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """Fields of the rows of a file.

    Attributes:
        delimiter: one or two bytes between two fields.
        quote: one byte around fields that may hold delimiters; empty without quotes.
        is_table: fields are cells of a table (see preproc.files.raw.tables); `quote` escapes them.
        is_json: rows are objects whose keys are the names of the columns; there is no delimiter.
        columns: columns of the fields, in field order.
        numbers: for each field, the index of its first feature within its role; 0 without one.
        bin_numbers: for each field with bins, the index of their categorical feature.
        split: how each row is assigned to a split; None if the row number decides.
        group_field: index of the field whose hash is the group of a row; None without groups.
        positive: labels of a click.
        negative: labels of rows without a click; None: all other labels.
        has_header: the first line is a header, not a row.
    """

    delimiter: bytes
    columns: tuple[Column, ...]
    numbers: tuple[int, ...]
    bin_numbers: tuple[int, ...] = ()
    split: SplitRule | None = None
    group_field: int | None = None
    positive: tuple[bytes, ...] = (b"1",)
    negative: tuple[bytes, ...] | None = (b"0",)
    has_header: bool = False
    quote: bytes = b""
    is_table: bool = False
    is_json: bool = False

    @property
    def is_text(self) -> bool:
        """Whether delimiters separate the fields."""
        return not self.is_table and not self.is_json

    def as_table(self) -> "RowFormat":
        """Returns the fields as cells of a table."""
        form: dict[str, Any] = {"delimiter": DELIMITER, "quote": ESCAPE, "has_header": True}
        return dataclasses.replace(self, **form, is_table=True, is_json=False)

    def as_objects(self) -> "RowFormat":
        """Returns the fields as values of objects."""
        form: dict[str, Any] = {"delimiter": b",", "quote": b"", "has_header": False}
        return dataclasses.replace(self, **form, is_table=False, is_json=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the used fields."""
        return tuple(column.name for column in self.columns if column.role != "ignored")

    def count(self, role: Role) -> int:
        """Counts the features of a role, including derived ones."""
        features = (each for c in self.columns for each in (c, *c.derived))
        return sum(feature.role == role for feature in features)

    @property
    def is_criteo(self) -> bool:
        """Whether the fields are those of a Criteo log, in their order."""
        return self.columns in (CRITEO_COLUMNS, CRITEO_COLUMNS[1:])

    @property
    def shortest_row_bytes(self) -> int:
        """Bytes of a row in which all features are missing."""
        return len(b"{}\n") if self.is_json else len(self.columns) + self.count("label")

    @property
    def blank(self) -> bytes:
        """Lines of only these bytes at the end of a file are no rows; empty if they may be rows."""
        return LINE_ENDS if len(self.columns) > 1 or self.is_json else b""

    @property
    def description(self) -> str:
        """Description of such a file, for messages."""
        if self.is_criteo:
            return "a Criteo log (40 tab-separated fields per line)"
        return f"a log of {len(self.columns)} fields per line"

    def is_split_by_time_of(self, number: int) -> bool:
        """Returns True if the time of a field decides the splits."""
        split = self.split
        return split is not None and split.kind == "time" and split.field == number

    def with_edges(self, edges: Edges) -> "RowFormat":
        """Returns the format with the bin edges that were found."""
        return dataclasses.replace(self, columns=with_edges(self.columns, edges))

    @property
    def separators(self) -> dict[str, str | None]:
        """Separators of lists by the keys of objects; see `cells_of_object`."""
        of_lists = {c.name: c.list.separator if c.list else "" for c in self.columns}
        return of_lists | {c.name: None for c in self.columns if c.role == "ignored"}

    def fields(self, row: bytes) -> list[bytes] | None:
        """Returns the fields of a row, missing ones empty.

        None if its quotes are wrong, or if it is not a JSON object.
        """
        if self.is_json:
            try:
                cells = cells_of_object(row, self.separators)
            except JsonError:
                return None
            return self._with_missing(cells)
        fields = (
            [*map(unescaped, row.split(self.delimiter))]
            if self.is_table
            else split_fields(row, self.delimiter, self.quote)
        )
        if fields is None:
            return None
        return fields if len(fields) != len(self.columns) else self._with_missing(fields)

    def _with_missing(self, fields: list[bytes]) -> list[bytes]:
        return [
            b"" if column.is_missing(field) else field
            for field, column in zip(fields, self.columns, strict=True)
        ]


def split_fields(row: bytes, delimiter: bytes, quote: bytes) -> list[bytes] | None:
    """Returns the fields of a row without their quotes.

    A field that begins with a quote is quoted; quotes inside it are doubled. None if a quoted field
    is not closed before a delimiter or the end.
    """
    if not quote or quote not in row:
        return row.split(delimiter)
    fields, at = [], 0
    while True:
        if row[at : at + 1] != quote:
            end = row.find(delimiter, at)
            end = len(row) if end < 0 else end
            fields.append(row[at:end])
        else:
            end = row.find(quote, at + 1)
            while row[end + 1 : end + 2] == quote and end >= 0:
                end = row.find(quote, end + 2)
            if end < 0 or row[end + 1 : end + 1 + len(delimiter)] not in (b"", delimiter):
                return None
            fields.append(row[at + 1 : end].replace(quote * 2, quote))
            end += 1
        if end == len(row):
            return fields
        at = end + len(delimiter)


def with_edges(columns: Sequence[Column], edges: Edges) -> tuple[Column, ...]:
    """Returns columns with the bin edges that were found."""
    return tuple(
        dataclasses.replace(column, bins=edges[column.name]) if column.name in edges else column
        for column in columns
    )


CRITEO_COLUMNS = (
    Column(name="label", role="label"),
    *(Column(name=f"I{i + 1}", role="numerical", type="int") for i in range(NUM_NUMERICAL)),
    *(Column(name=f"C{i + 1}", role="categorical") for i in range(NUM_CATEGORICAL)),
)


def criteo_format(*, unlabelled: bool = False) -> RowFormat:
    """Returns the fields of Criteo's logs, with or without the label."""
    numbers = (0, *range(NUM_NUMERICAL), *range(NUM_CATEGORICAL))
    first = int(unlabelled)
    return RowFormat(delimiter=b"\t", columns=CRITEO_COLUMNS[first:], numbers=numbers[first:])
