# SPDX-License-Identifier: Apache-2.0
"""Fields of a raw row: their number, order and roles."""

import dataclasses
from typing import Literal, NamedTuple, get_args

from preproc.clicks.schema.time_rule import TimeRule

Role = Literal["ignored", "label", "numerical", "categorical", "timestamp", "categorical_list"]
ROLES: tuple[Role, ...] = get_args(Role)
"""In the order of their numbers in the kernel."""

FieldType = Literal["hex", "string", "int", "float"]
FIELD_TYPES: tuple[FieldType, ...] = get_args(FieldType)
"""In the order of their numbers in the kernel."""

KeyType = Literal["uint32", "int64", "text"]
KEY_TYPES: tuple[KeyType, ...] = get_args(KeyType)
"""What the categories of a column are, in the order of the kernel's numbers."""

NUM_NUMERICAL = 13
NUM_CATEGORICAL = 26
"""Of Criteo's logs."""

MAX_FIELDS = 1000
"""Of a row: their ends are kept for a batch of rows."""

MAX_FEATURES = 64
"""Numerical features, and categorical ones, of a row: the kernel keeps a bit of each."""


class NumberRule(NamedTuple):
    """Transform of decimal numbers: ln(max(x, minimum) + offset), or x itself."""

    takes_log: bool = False
    minimum: float = 0.0
    offset: float = 0.0


AS_IT_IS = NumberRule()


class ListRule(NamedTuple):
    """The way in which the lists of a column are read.

    Attributes:
        separator: one character between two elements.
        weight_separator: one before the weight of each element; empty for none.
        max_length: elements that are kept of a longer list.
        keep: which of them, the `last` or the `first`.
        pooling: vectors of a list are summed, or averaged.
    """

    separator: str
    weight_separator: str = ""
    max_length: int = 50
    keep: Literal["last", "first"] = "last"
    pooling: Literal["mean", "sum"] = "mean"

    @property
    def numbers(self) -> tuple[int, int, int, bool, bool]:
        """The rule as the kernel has it."""
        separators = ord(self.separator), int.from_bytes(self.weight_separator.encode())
        return (*separators, self.max_length, self.keep == "first", self.pooling == "mean")


class SplitRule(NamedTuple):
    """Gives each row to a split, by time or hash.

    Attributes:
        kind: `time` or `random`.
        field: whose time, or hash, it is; None: the hash of the row.
        seed: of the hash.
        cuts: the least values of validation and test rows.
        counts_train: categories are counted in training rows alone.
    """

    kind: Literal["time", "random"]
    field: int | None
    seed: int
    cuts: tuple[int, int]
    counts_train: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """Fields of the rows of a file.

    Attributes:
        delimiter: one byte between two fields.
        quote: one byte around fields that may hold delimiters; empty for none.
        names: of the fields; empty for Criteo's.
        roles: of each field.
        columns: of each field, its number among the features of its role; 0 for others.
        missing: of each field, texts that mean that it is missing, besides an empty one.
        types: of each feature, how it is read; `hex` for other fields.
        buckets: of each field, the number of which hashes of its categories are taken modulo; 0
            keeps them as they are.
        rules: of each field, the transform of decimal numbers.
        times: of each field, how its times are read; None for others.
        lists: of each field, how its lists are read; None for others.
        split: how each row is given to a split; None if its number decides.
        group_field: number of the field whose hash is the group of a row.
        positive: labels of a click.
        negative: labels of none; None for all others.
        has_header: the first line is none of the rows.
        has_label: False for Criteo's logs without labels, whose rows lack the first field.
    """

    delimiter: bytes
    roles: tuple[Role, ...]
    columns: tuple[int, ...]
    missing: tuple[tuple[bytes, ...], ...]
    types: tuple[FieldType, ...]
    buckets: tuple[int, ...]
    rules: tuple[NumberRule, ...]
    times: tuple[TimeRule | None, ...]
    lists: tuple[ListRule | None, ...]
    split: SplitRule | None = None
    group_field: int | None = None
    positive: tuple[bytes, ...] = (b"1",)
    negative: tuple[bytes, ...] | None = (b"0",)
    has_header: bool = False
    has_label: bool = True
    quote: bytes = b""
    names: tuple[str, ...] = ()

    @property
    def is_criteo(self) -> bool:
        """Whether the fields are those of a Criteo log, in their order."""
        return (
            self.roles == _CRITEO_ROLES
            and self.columns == _CRITEO_COLUMNS
            and not any((*self.missing, *self.buckets))
            and "float" not in self.types
            and not self.quote
            and self.split is None
            and self.group_field is None
            and (self.positive, self.negative) == ((b"1",), (b"0",))
        )

    @property
    def num_categorical(self) -> int:
        """Categorical features, those of times among them."""
        of_times = sum(len(time.features) for time in self.times if time is not None)
        return self.roles.count("categorical") + of_times

    @property
    def shortest_row_bytes(self) -> int:
        """Bytes of a row whose features are all missing."""
        return len(self.roles) + self.roles.count("label")

    @property
    def description(self) -> str:
        """Name of such a file, for messages."""
        if self.is_criteo:
            return "a Criteo log (40 tab-separated fields per line)"
        return f"a log of {len(self.roles)} fields per line"

    def is_split_by_time_of(self, number: int) -> bool:
        """Returns whether the time of a field gives rows to their splits."""
        split = self.split
        return split is not None and split.kind == "time" and split.field == number

    def fields(self, row: bytes) -> list[bytes] | None:
        """Returns the fields of a row, missing ones empty.

        None if its quotes are wrong.
        """
        fields = split_fields(row, self.delimiter, self.quote)
        if fields is None:
            return None
        if not self.has_label:
            return [b"0", *fields]
        if len(fields) != len(self.roles):
            return fields
        return [
            b"" if field in missing else field
            for field, missing in zip(fields, self.missing, strict=True)
        ]


def split_fields(row: bytes, delimiter: bytes, quote: bytes) -> list[bytes] | None:
    """Returns the fields of a row without their quotes.

    A field is in quotes if it begins with one; those in it are doubled. None if one that begins
    so is not closed before a delimiter or the end.
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
            if end < 0 or row[end + 1 : end + 2] not in (b"", delimiter):
                return None
            fields.append(row[at + 1 : end].replace(quote * 2, quote))
            end += 1
        if end == len(row):
            return fields
        at = end + 1


_NUMERICAL: tuple[Role, ...] = ("numerical",)
_CATEGORICAL: tuple[Role, ...] = ("categorical",)
_HEX: tuple[FieldType, ...] = ("hex",)
_CRITEO_ROLES: tuple[Role, ...] = (
    "label",
    *_NUMERICAL * NUM_NUMERICAL,
    *_CATEGORICAL * NUM_CATEGORICAL,
)
_CRITEO_COLUMNS = (0, *range(NUM_NUMERICAL), *range(NUM_CATEGORICAL))


def criteo_format(*, unlabelled: bool = False) -> RowFormat:
    """Returns the fields of Criteo's logs."""
    return RowFormat(
        delimiter=b"\t",
        roles=_CRITEO_ROLES,
        columns=_CRITEO_COLUMNS,
        missing=((),) * len(_CRITEO_ROLES),
        types=_HEX * len(_CRITEO_ROLES),
        buckets=(0,) * len(_CRITEO_ROLES),
        rules=(AS_IT_IS,) * len(_CRITEO_ROLES),
        times=(None,) * len(_CRITEO_ROLES),
        lists=(None,) * len(_CRITEO_ROLES),
        has_label=not unlabelled,
    )
