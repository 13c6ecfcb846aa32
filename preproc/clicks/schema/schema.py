# SPDX-License-Identifier: Apache-2.0
"""Schemas of click logs: columns of a file, and their meaning.

docs/own_clicks.md describes the keys. Names follow existing tools: `dialect` and `missing` come
from Frictionless, roles and types from RePlay and FuxiCTR.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from preproc.clicks.schema.row_format import (
    Column,
    Edges,
    ListRule,
    NumberRule,
    Role,
    RowFormat,
    SplitRule,
    split_fields,
    with_edges,
)
from preproc.clicks.schema.time_rule import TimeRule
from preproc.files.errors import PreprocError
from preproc.files.raw import tables
from preproc.files.raw.tables import TableColumn

if TYPE_CHECKING:
    import pyarrow as pa

    from recsys.data.feature_spec import FeatureSpec

_WITHOUT_LABEL = (
    "to read rows without a label, give `unlabelled` and the `dictionaries` of a dataset; else "
)

SplitKind = Literal["files", "rows", "fractions", "time", "random"]
SPLIT_KINDS: tuple[SplitKind, ...] = get_args(SplitKind)

SHUFFLED: frozenset[SplitKind] = frozenset({"fractions", "random"})
"""Splits whose training rows are shuffled unless `shuffle_seed` says otherwise.

These splits say nothing about the order of the rows, which may be sorted by label. Splits by time,
rows and files keep an order that the user chose.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatingsSchema:
    """The schema of a file of ratings, or of titles of items.

    Attributes:
        name: name of the format; for titles, name of the file next to the ratings.
        rows: fields of a row, in file order.
        has_any_ids: ids are whole numbers or texts, depending on the first rows.
        titles: schema of the item titles; None without titles.
        encoding: encoding of a text that is not UTF-8; only titles may set it.
    """

    name: str
    rows: RowFormat
    has_any_ids: bool = False
    titles: "RatingsSchema | None" = None
    encoding: str = "utf-8"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """A schema with all defaults filled in.

    Attributes:
        delimiter: one or two characters between two fields.
        quote: one character around fields that may hold delimiters; empty without quotes.
        header: files begin with the names of their columns, in any order.
        positive: labels of a click.
        negative: labels of rows without a click; None: all other labels.
        columns: in file order if there is no header; the order of features is that of their tables.
        numbers: dtype of the numerical features in split binary.
        min: smaller raw numbers are raised to this first.
        offset: added before the natural logarithm.
        count: rows whose categories are counted.
        split: how rows become training, validation and test rows.
        values: files, rows or fraction of each split; for `time`, the least times of validation
            and test rows, in milliseconds since 1970 UTC.
        split_column: for `time`, the timestamp; for `random`, the column whose equal values keep
            rows together, or empty to keep only equal rows together.
        seed: seed of a `random` split.
    """

    delimiter: str
    quote: str
    header: bool
    positive: tuple[str, ...]
    negative: tuple[str, ...] | None
    columns: tuple[Column, ...]
    numbers: Literal["float16", "float32"]
    min: int
    offset: int
    count: Literal["all", "train"]
    split: SplitKind
    values: tuple[tuple[str, ...], ...] | tuple[float, ...]
    split_column: str = ""
    seed: int = 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Schema":
        """Builds a schema from the values that a manifest records."""
        columns = (
            Column(
                **column
                | {"rule": _number_rule(*column["rule"]), "missing": tuple(column["missing"])}
                | {"time": _time_rule(column.get("time")), "bins": _bins(column)}
                | {"list": ListRule(*column["list"]) if column.get("list") else None}
            )
            for column in values["columns"]
        )
        negative = values["negative"]
        given = {
            "columns": tuple(columns),
            "positive": tuple(values["positive"]),
            "negative": None if negative is None else tuple(negative),
            "values": tuple(tuple(v) if isinstance(v, list) else v for v in values["values"]),
        }
        return cls(**{**values, **given})

    def named(self, role: Role) -> tuple[Column, ...]:
        """Returns the columns of a role; features of times are categorical."""
        return tuple(
            each
            for column in self.columns
            for each in (column, *column.derived)
            if each.role == role
        )

    @property
    def with_dictionaries(self) -> tuple[Column, ...]:
        """The columns that have embedding tables, in table order; lists come last."""
        return self.named("categorical") + self.named("categorical_list")

    @property
    def vocabularies(self) -> tuple[tuple[int, ...], ...]:
        """For each column with a table, the columns (by index) over which its ids are counted."""
        columns = self.with_dictionaries
        return tuple(
            tuple(
                other
                for other, each in enumerate(columns)
                if other == number or (own.vocabulary and own.vocabulary == each.vocabulary)
            )
            for number, own in enumerate(columns)
        )

    @property
    def named_files(self) -> tuple[str, ...]:
        """Files of the splits, in order; empty if the split is not by files."""
        values: Any = self.values
        return tuple(itertools.chain(*values)) if self.split == "files" else ()

    @property
    def splits_by_row(self) -> bool:
        """Whether rows are split by time or at random."""
        return self.split in ("time", "random")

    def feature_spec(self, cardinalities: tuple[int, ...]) -> "FeatureSpec":
        """Returns names and dtypes of the dataset's columns."""
        from recsys.data.feature_spec import CategoricalFeature, FeatureSpec, ListFeature

        singles, lists = self.named("categorical"), self.named("categorical_list")
        rules = [column.list or ListRule("") for column in lists]
        return FeatureSpec(
            categorical=tuple(
                CategoricalFeature(column.name, rows)
                for column, rows in zip(singles, cardinalities, strict=False)
            ),
            lists=tuple(
                ListFeature(column.name, rows, rule.pooling, bool(rule.weight_separator))
                for column, rows, rule in zip(
                    lists, cardinalities[len(singles) :], rules, strict=True
                )
            ),
            numerical=tuple(column.name for column in self.named("numerical")),
            label=self.named("label")[0].name,
            numerical_dtype=self.numbers,
        )

    def row_format(self, path: Path, first_line: bytes, *, unlabelled: bool = False) -> RowFormat:
        """Returns the fields of a file.

        Args:
            path: the file, for messages.
            first_line: the file's first line, without its line end.
            unlabelled: the label is not read; a header may lack it, and files without a header do.

        Raises:
            PreprocError: the header lacks a column of the schema, or has an extra one.
        """
        columns = list(self.columns)
        if unlabelled:
            columns = [
                dataclasses.replace(column, role="ignored") if column.role == "label" else column
                for column in columns
                if self.header or column.role != "label"
            ]
        if self.header:
            split = split_fields(first_line, self.delimiter.encode(), self.quote.encode())
            names = [name.decode(errors="replace") for name in split or [first_line]]
            label = self.named("label")[0].name
            declared = {
                column.name: column
                for column in columns
                if column.name in names or not (unlabelled and column.name == label)
            }
            twice = sorted({name for name in names if names.count(name) > 1})
            unknown = [name for name in names if name not in declared]
            lacking = [
                name
                for name, column in declared.items()
                if name not in names
                and (column.role != "ignored" or (self._is_used(column) and not unlabelled))
            ]
            if twice:
                raise PreprocError(
                    f"{path}: the header names {', '.join(twice)} more than once", path=path
                )
            if unknown or lacking:
                problems = [
                    *([f"lacks {', '.join(map(repr, lacking))}"] if lacking else ()),
                    *([f"has extra {', '.join(map(repr, unknown))}"] if unknown else ()),
                ]
                raise PreprocError(
                    f"{path}: the header {' and '.join(problems)}; "
                    f"{_WITHOUT_LABEL if lacking == [label] else ''}correct the schema (give "
                    "columns that you do not need `role: ignored`) or its delimiter, "
                    f"{self.delimiter!r}",
                    path=path,
                )
            columns = [declared[name] for name in names]
        return self._rows_of(columns, has_header=self.header)

    def table_format(
        self, path: Path, types: Mapping[str, "pa.DataType"], *, unlabelled: bool = False
    ) -> tuple[RowFormat, tuple[TableColumn, ...]]:
        """Returns the used columns of a table as fields of rows, and how to read them.

        Args:
            path: the table, for messages.
            types: types of its columns, by name; unused columns are ignored.
            unlabelled: the label is not used.

        Raises:
            PreprocError: the table lacks a column.
        """
        tell_apart = {c.name for c in self.columns if _identifies_rows(c, types)}
        used = self._used(path, types, tell_apart, unlabelled=unlabelled)
        columns = [_of_table(column, types[column.name]) for column in used]
        return self._rows_of(columns, has_header=True).as_table(), tuple(
            TableColumn(
                name=column.name,
                truths=self._truths(column),
                takes_lists=column.list is not None and tables.is_list(types[column.name]),
                is_number=_is_number(column),
            )
            for column in columns
        )

    def object_format(
        self, path: Path, keys: Collection[str], *, unlabelled: bool = False
    ) -> RowFormat:
        """Returns the used columns as keys of objects.

        Args:
            path: the file of JSON lines, for messages.
            keys: keys of the file's first objects.
            unlabelled: the label is not used.

        Raises:
            PreprocError: the objects lack a key.
        """
        used = self._used(path, keys, keys, unlabelled=unlabelled)
        return self._rows_of(used, has_header=False).as_objects()

    def _used(
        self,
        path: Path,
        names: Collection[str],
        tell_apart: Collection[str],
        *,
        unlabelled: bool,
    ) -> list[Column]:
        """Returns the used columns of a table, or keys of objects.

        The columns in `tell_apart` are part of the hash of a row.

        Raises:
            PreprocError: a used column is not among the names.
        """
        used = [
            column
            for column in self.columns
            if (column.role != "ignored" and not (unlabelled and column.role == "label"))
            or (self._is_used(column) and (column.name in names or not unlabelled))
            or (self.split == "random" and not unlabelled and column.name in tell_apart)
        ]
        lacking = [column.name for column in used if column.name not in names]
        if lacking:
            without_label = _WITHOUT_LABEL if lacking == [self.named("label")[0].name] else ""
            raise PreprocError(
                f"{path}: lacks the column {', '.join(map(repr, lacking))}; {without_label}correct "
                "the schema or the file",
                path=path,
            )
        return used

    def _truths(self, column: Column) -> tuple[str, str]:
        """Returns the texts for false and true; for a label, texts that the schema knows."""
        pairs = [("false", "true"), ("0", "1"), ("False", "True"), ("FALSE", "TRUE")]
        if column.role != "label":
            return pairs[_is_number(column)]
        known = {*self.positive, *(self.negative or ())}
        return next((pair for pair in pairs if known.intersection(pair)), pairs[0])

    def _rows_of(self, columns: list[Column], *, has_header: bool) -> RowFormat:
        """Returns the format of a file's rows, with their splits and groups."""
        row_format = self._format_of(columns, has_header=has_header)
        names = list(row_format.names)
        groups = [number for number, column in enumerate(columns) if column.group]
        rule = None
        if self.splits_by_row:
            rule = SplitRule(
                kind="time" if self.split == "time" else "random",
                field=names.index(self.split_column) if self.split_column else None,
                seed=self.seed,
                cuts=self.cuts,
                counts_train=self.count == "train",
            )
        return dataclasses.replace(
            row_format, split=rule, group_field=groups[0] if groups else None
        )

    def _is_used(self, column: Column) -> bool:
        """Returns True if a column without features groups or splits the rows."""
        return column.group or (self.splits_by_row and column.name == self.split_column)

    @property
    def cuts(self) -> tuple[int, int]:
        """The least values of validation and of test rows."""
        values: Any = self.values
        if self.split == "time":
            return values[0], values[1]
        train, validation, _ = values
        return round(train * 2**63), round(min(train + validation, 1) * 2**63)

    @property
    def lacking_edges(self) -> tuple[Column, ...]:
        """Numerical columns whose bin edges are still to be found."""
        return tuple(column for column in self.columns if column.lacks_edges)

    def with_edges(self, edges: Edges) -> "Schema":
        """Returns the schema with the bin edges that were found."""
        return dataclasses.replace(self, columns=with_edges(self.columns, edges))

    def without_found_edges(self) -> "Schema":
        """Returns the schema without the bin edges that were found in rows."""
        columns = (
            dataclasses.replace(column, bins=None) if column.quantiles else column
            for column in self.columns
        )
        return dataclasses.replace(self, columns=tuple(columns))

    def without_idle_times(self) -> "Schema":
        """Returns the schema with timestamps ignored that only split and have no features."""
        columns = (
            dataclasses.replace(column, role="ignored", time=None)
            if column.role == "timestamp" and not column.derived
            else column
            for column in self.columns
        )
        return dataclasses.replace(self, columns=tuple(columns))

    @property
    def line_format(self) -> RowFormat:
        """The fields of a served line: all columns except the label."""
        columns = [c for c in self.without_idle_times().columns if c.role != "label"]
        return self._format_of(columns, has_header=False)

    def _format_of(self, columns: list[Column], *, has_header: bool) -> RowFormat:
        numbers = {
            column.name: number
            for role in ("numerical", "categorical", "categorical_list")
            for number, column in enumerate(self.named(role))
        }
        numbers |= {
            column.name: numbers[column.derived[0].name]
            for column in columns
            if column.role == "timestamp" and column.derived
        }
        return RowFormat(
            delimiter=self.delimiter.encode(),
            quote=self.quote.encode(),
            columns=tuple(columns),
            numbers=tuple(numbers.get(column.name, 0) for column in columns),
            bin_numbers=tuple(numbers[c.derived[0].name] if c.has_bins else 0 for c in columns),
            positive=tuple(map(str.encode, self.positive)),
            negative=None if self.negative is None else tuple(map(str.encode, self.negative)),
            has_header=has_header,
        )


def _identifies_rows(column: Column, types: Mapping[str, "pa.DataType"]) -> bool:
    """Returns True if a column without a role is part of the hash of a row, as in csv."""
    kind = types.get(column.name)
    return column.role == "ignored" and tables.is_read(kind) and not tables.is_list(kind)


def _of_table(column: Column, kind: "pa.DataType") -> Column:
    """Returns a column adapted to the text that the cells of a table become."""
    if column.list is not None and tables.is_list(kind):
        return dataclasses.replace(column, list=column.list._replace(separator=tables.ELEMENT_END))
    if column.time is not None and tables.is_time(kind):
        return dataclasses.replace(column, time=column.time._replace(format="iso8601"))
    return column


def _is_number(column: Column) -> bool:
    """Returns True if all values of a column are numbers."""
    is_category = column.role in ("categorical", "categorical_list")
    return column.role in ("numerical", "timestamp") or (is_category and column.type != "string")


def _number_rule(transform: Any, *numbers: float) -> NumberRule:
    """Returns a recorded transform; in older manifests it is a bool, True for the logarithm."""
    if isinstance(transform, bool):
        transform = "log" if transform else "standardise"
    return NumberRule(transform, *numbers)


def _bins(column: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Returns recorded bin edges; in older manifests an empty list means no bins."""
    bins = column.get("bins")
    return tuple(bins) if bins or (bins is not None and column.get("quantiles")) else None


def _time_rule(values: Any) -> TimeRule | None:
    if values is None:
        return None
    time_format, zone, features = values
    return TimeRule(time_format, zone, tuple(features))
