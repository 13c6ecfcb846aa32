# SPDX-License-Identifier: Apache-2.0
"""Reads schemas from YAML; errors name file and line."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import lt
from pathlib import Path
from typing import Any

from preproc.clicks.schema.row_format import (
    AS_IT_IS,
    MAX_FEATURES,
    MAX_FIELDS,
    Column,
    FieldType,
    ListRule,
    NumberRule,
    Role,
    RowFormat,
)
from preproc.clicks.schema.schema import SPLIT_KINDS, RatingsSchema, Schema
from preproc.clicks.schema.time_rule import TIME_FEATURES, TimeRule, read_zone
from preproc.files.errors import PreprocError
from recsys.data.quantiles import MOST_BINS

_TOP = ("dialect", "missing", "label", "numbers", "defaults", "columns", "split")
_DIALECT = ("delimiter", "header", "quote")
_LABEL = ("column", "positive", "negative")
_DEFAULTS = ("frequency_limit", "count", "min", "offset")
_ANY_ROLE = ("name", "role", "missing", "group")
_CATEGORY = ("type", "buckets", "frequency_limit", "max_ids", "vocabulary")
_KEYS = {
    "numerical": (*_ANY_ROLE, "type", "transform", "min", "offset", "mean", "deviation", "bins"),
    "categorical": (*_ANY_ROLE, *_CATEGORY),
    "categorical_list": (
        *(*_ANY_ROLE, *_CATEGORY, "separator", "weight_separator", "max_length", "keep"),
        "pooling",
    ),
    "timestamp": (*(*_ANY_ROLE, "format", "time_zone", "features", "frequency_limit", "max_ids"),),
    "ignored": _ANY_ROLE,
    "label": ("name", "role"),
}
_DRAFTED = (
    *("name", "role", "missing", "type", "transform", "mean", "deviation", "separator"),
    *("weight_separator", "format", "features"),
)
"""Keys that a draft may give to the column that turns out to be the label."""
_OF_TRANSFORM = {
    "log": ("min", "offset"),
    "none": (),
    "standardise": ("mean", "deviation"),
    "signed_log": ("mean", "deviation"),
}
_OF_FEATURES = ("frequency_limit", "max_ids")
"""Keys of a timestamp that apply only to its features."""
_COLUMN = tuple({key: None for keys in _KEYS.values() for key in keys})
_CATEGORIES = ("hex", "string", "int")
_TYPES = {
    "numerical": ("int", "float"),
    "categorical": _CATEGORIES,
    "categorical_list": _CATEGORIES,
}
_COUNTED = ("categorical", "categorical_list", "timestamp")
_MAX_TEXTS = 255
_MOST_NUMBER = 1e30
_DELIMITER = re.compile(r"[\x01\t -,/:-~]|[!-,/:-@\[-`{-~]{2}")
_ONE_CHARACTER = re.compile(r"[\x02\x03 -,/:-~]")
"""Separators within lists; the first two are Hive's."""
_SPLITS = ("train", "validation", "test")
_MAX_LENGTH = 10_000
_TIME_SPLIT = ("validation", "test", "column")
_RANDOM_SPLIT = ("fractions", "by", "seed")
_CATEGORICAL = ("categorical", "categorical_list")
_QUANTILES = re.compile(r"quantiles:(\d{1,9})")
_RANGE = re.compile(r"(.*)\{(\d{1,18})\.\.(\d{1,18})\}(.*)")


_TOP_OF_RATINGS = ("format", "dialect", "columns", "titles")
_TITLES = ("file", "dialect", "columns")
_DIALECT_OF_TITLES = (*_DIALECT, "encoding")
_ENCODINGS = ("utf-8", "latin-1")
_KEYS_OF_RATINGS: dict[Role, tuple[str, ...]] = {
    "user": ("name", "role", "type"),
    "item": ("name", "role", "type"),
    "rating": ("name", "role"),
    "timestamp": ("name", "role", "format", "time_zone"),
    "title": ("name", "role"),
    "ignored": ("name", "role"),
}
_ROLES_OF_RATINGS: tuple[Role, ...] = ("user", "item", "rating", "timestamp", "ignored")
_ROLES_OF_TITLES: tuple[Role, ...] = ("item", "title", "ignored")
_COLUMN_OF_RATINGS = ("name", "role", "type", "format", "time_zone")
_ID_TYPES: dict[str, FieldType] = {
    "auto": "name",
    "integer": "digits",
    "string": "name",
    "token": "token",
}


def load_ratings_schema(path: Path) -> RatingsSchema:
    """Reads the schema of a file of ratings.

    Raises:
        PreprocError: it is missing or wrong; the message names file, line and key.
    """
    return _Reader(path, "format").ratings()


def load_schema(path: Path) -> Schema:
    """Reads a schema.

    Raises:
        PreprocError: it is missing or wrong; the message names file, line and key.
    """
    return _Reader(path).schema()


class _Reader:
    """Reads the keys of a schema and remembers their lines for messages."""

    def __init__(self, path: Path, setting: str = "schema") -> None:
        from recsys.files.strict_yaml import load  # imports yaml, which few commands need

        self._path, self._document = path, load(path, PreprocError, setting)
        self._values = self._document.values

    def schema(self) -> Schema:
        """Returns the schema."""
        top = self._mapping((), self._values, _TOP)
        dialect = self._mapping(("dialect",), top.get("dialect", {}), _DIALECT)
        delimiter, quote, header = self._dialect(dialect)
        defaults = self._mapping(("defaults",), top.get("defaults", {}), _DEFAULTS)
        missing = self._texts(("missing",), top.get("missing", []))
        spelled_out = self._columns(top.get("columns"), defaults, missing)
        columns = tuple(islice(spelled_out, MAX_FIELDS + 1))  # a name may stand for 10**9
        label = self._mapping(("label",), top.get("label"), _LABEL)
        positive = self._texts(("label", "positive"), label.get("positive", ["1"]))
        negative = label.get("negative", ["0"])
        if negative != "other":
            negative = self._texts(("label", "negative"), negative)
            if both := set(positive) & set(negative):
                raise self._error(("label", "negative"), f"{both.pop()!r} is also positive")
        columns = self._with_label(columns, label.get("column"), header)
        self._check_columns(columns)
        split = self._split(top.get("split"), columns)
        self._refuse_idle_keys(columns, label["column"], split)
        numbers = self._one_of(("numbers",), top.get("numbers", "float32"), ("float32", "float16"))
        if numbers == "float16" and any(column.type == "float" for column in columns):
            raise self._error(("numbers",), "decimal numbers need float32 so far")
        count_of = self._one_of(
            ("defaults", "count"), defaults.get("count", "train"), ("train", "all")
        )
        return Schema(
            delimiter=delimiter,
            quote=quote,
            header=header,
            positive=positive,
            negative=None if negative == "other" else negative,
            columns=columns,
            numbers=numbers,
            min=self._common(defaults, "min", 0),
            offset=self._common(defaults, "offset", 1),
            count=count_of,
            **split,
        )

    def _dialect(
        self, dialect: Mapping[str, Any], at: tuple[str, ...] = ("dialect",)
    ) -> tuple[str, str, bool]:
        """Returns delimiter, quote, and whether files have a header."""
        header = self._one_of((*at, "header"), dialect.get("header", True), (True, False))
        quote = self._one_of((*at, "quote"), dialect.get("quote", '"'), ('"', "none"))
        delimiter = dialect.get("delimiter", ",")
        if not isinstance(delimiter, str) or not re.fullmatch(_DELIMITER, delimiter):
            raise self._error(
                (*at, "delimiter"),
                'expected one character (a tab, Hive\'s "\\x01" or printable ASCII except - and .) '
                f"or two such as ::, got {delimiter!r}",
            )
        if quote in delimiter:
            raise self._error((*at, "delimiter"), "is also the quote")
        return delimiter, "" if quote == "none" else quote, bool(header)

    def ratings(self) -> RatingsSchema:
        """Returns the schema of a file of ratings."""
        top = self._mapping((), self._values, _TOP_OF_RATINGS)
        at = ("dialect",)
        dialect = self._dialect(self._mapping(at, top.get("dialect", {}), _DIALECT), at)
        name = top.get("format", self._path.stem)
        if not isinstance(name, str):
            raise self._error(("format",), f"expected a name, got {name!r}")
        columns = self._columns_of_ratings(("columns",), top.get("columns"), _ROLES_OF_RATINGS)
        roles = [column.role for column in columns if column.role != "ignored"]
        if len(roles) > len({*roles}) or not {"user", "item"} <= {*roles}:
            text = "expected one user and one item, at most one rating and one timestamp"
            raise self._error(("columns",), f"{text}, got {', '.join(roles)}")
        types = [entry.get("type") for entry in top["columns"] if entry["role"] in ("user", "item")]
        if ("auto" in types) and types[0] != types[1]:
            raise self._error(("columns",), "if one of user and item has type auto, both must")
        return RatingsSchema(
            name=name,
            rows=_rows_of(dialect, columns),
            has_any_ids="auto" in types,
            titles=self._titles(top["titles"]) if "titles" in top else None,
        )

    def _titles(self, values: Any) -> RatingsSchema:
        """Returns the schema of the file of titles that is next to the ratings."""
        at = ("titles",)
        given = self._mapping(at, values, _TITLES)
        of_dialect = (*at, "dialect")
        mapping = self._mapping(of_dialect, given.get("dialect", {}), _DIALECT_OF_TITLES)
        dialect = self._dialect(mapping, of_dialect)
        encoding = self._one_of(
            (*of_dialect, "encoding"), mapping.get("encoding", "utf-8"), _ENCODINGS
        )
        file = given.get("file")
        if not isinstance(file, str) or Path(file).name != file:
            raise self._error((*at, "file"), f"expected a file name, got {file!r}")
        columns = self._columns_of_ratings((*at, "columns"), given.get("columns"), _ROLES_OF_TITLES)
        roles = sorted(column.role for column in columns if column.role != "ignored")
        if roles != ["item", "title"]:
            raise self._error(
                (*at, "columns"), f"expected one item and one title, got {', '.join(roles)}"
            )
        return RatingsSchema(name=file, rows=_rows_of(dialect, columns), encoding=encoding)

    def _columns_of_ratings(
        self, at: tuple[str, ...], entries: Any, roles: tuple[Role, ...]
    ) -> tuple[Column, ...]:
        if not isinstance(entries, list):
            raise self._error(at, "expected a list of columns")
        columns = tuple(
            dataclasses.replace(column, name=name)
            for i, entry in enumerate(entries)
            for column in [self._column_of_ratings((*at, i), entry, roles)]
            for name in _spelled_out(column.name)
        )
        names = [column.name for column in columns]
        if len(names) > len({*names}):
            raise self._error(at, "a name occurs more than once")
        return columns

    def _column_of_ratings(
        self, at: tuple[Any, ...], values: Any, roles: tuple[Role, ...]
    ) -> Column:
        entry = self._mapping(at, values, _COLUMN_OF_RATINGS)
        role = self._one_of((*at, "role"), entry.get("role"), roles)
        for key in entry:
            if key not in _KEYS_OF_RATINGS[role]:
                keys = ", ".join(_KEYS_OF_RATINGS[role])
                raise self._error((*at, key), f"does not apply to role {role}, which has {keys}")
        name = entry.get("name")
        if not isinstance(name, str):
            raise self._error((*at, "name"), f"expected a text, got {name!r}")
        is_id = role in ("user", "item")
        kind: FieldType = "hex"
        if is_id:
            kind = _ID_TYPES[self._one_of((*at, "type"), entry.get("type"), (*_ID_TYPES,))]
        is_any = entry.get("format", "auto") == "auto"
        if is_any and "time_zone" in entry:
            raise self._error((*at, "time_zone"), "without `format`, times are UTC or name a zone")
        rule = TimeRule("any") if is_any else self._time_rule(at, entry)
        time = rule if role == "timestamp" else None
        return Column(name=name, role=role, type=kind, time=time)

    def _check_columns(self, columns: tuple[Column, ...]) -> None:
        """Refuses columns that contradict each other."""
        names = [name for c in columns for name in (c.name, *(f.name for f in c.derived))]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self._error(("columns",), f"{', '.join(twice)} occurs more than once")
        if len(columns) > MAX_FIELDS:
            raise self._error(("columns",), f"more than {MAX_FIELDS} columns, the limit")
        for role, alike in (("numerical", ["numerical"]), ("categorical", _CATEGORICAL)):
            count = sum(
                each.role in alike for column in columns for each in (column, *column.derived)
            )
            if count > MAX_FEATURES:
                raise self._error(
                    ("columns",), f"{count} {role} features; the limit is {MAX_FEATURES} so far"
                )
        if not any(c.role == "numerical" or c.role in _CATEGORICAL or c.derived for c in columns):
            raise self._error(("columns",), "no column is a feature")
        vocabularies = Counter(column.vocabulary for column in columns)
        for column in columns:
            if column.vocabulary and vocabularies[column.vocabulary] == 1:
                text = f"only {column.name} has the vocabulary {column.vocabulary!r}"
                raise self._error(("columns",), text)
        if sum(column.group for column in columns) > 1:
            raise self._error(("columns",), "several columns have `group: true`; keep one")

    def _refuse_idle_keys(
        self, columns: tuple[Column, ...], label: str, split: Mapping[str, Any]
    ) -> None:
        """Refuses keys that would have no effect."""
        entries = self._values["columns"]
        for i, entry in enumerate(entries):
            for key, reason in _idle_keys(entry, label, split):
                names = _names_of(entry)
                raise self._error(
                    ("columns", i, key),
                    f"column {', '.join(names)}: {reason}; remove it, it would have no effect",
                )
        numerical = [entry for entry in entries if entry["role"] == "numerical"]
        idle: dict[tuple[str, ...], str] = {}
        if not numerical:
            idle["numbers",] = "no column is numerical"
        if not any(entry.get("transform", "log") == "log" for entry in numerical):
            for key in _OF_TRANSFORM["log"]:
                idle["defaults", key] = "no column has `transform: log`"
        if not any(c.role in _CATEGORICAL or (c.time and c.derived) for c in columns):
            of_bins = "no feature is categorical except bins, which have no limit"
            idle["defaults", "frequency_limit"] = of_bins
            if not any(c.quantiles for c in columns):
                idle["defaults", "count"] = "neither categories nor quantiles are counted"
        given: set[tuple[str, ...]] = {(key,) for key in self._values}
        given |= {("defaults", key) for key in self._values.get("defaults", {})}
        for at in sorted(given & idle.keys()):
            raise self._error(at, f"{idle[at]}; remove it, it would have no effect")

    def _columns(
        self, entries: Any, defaults: Mapping[str, Any], missing: tuple[str, ...]
    ) -> Iterator[Column]:
        if not isinstance(entries, list) or not entries:
            raise self._error(("columns",), "expected a list of columns")
        limit = self._integer(("defaults", "frequency_limit"), defaults.get("frequency_limit", 2))
        for i, entry in enumerate(self._entries(entries)):
            at = ("columns", i)
            roles = (*_TYPES, "timestamp", "ignored", "label")
            role = self._one_of((*at, "role"), entry.get("role"), roles)
            for key in entry:
                if key not in _KEYS[role]:
                    raise self._error(
                        (*at, key),
                        f"does not apply to role {role}, which has {', '.join(_KEYS[role])}",
                    )
            known = _TYPES.get(role)
            kind: Any = entry.get("type")
            if known is not None and kind not in known:
                raise self._error(
                    (*at, "type"),
                    f"a {role} column must have one of {', '.join(known)} so far, got {kind!r}",
                )
            buckets = self._integer((*at, "buckets"), entry.get("buckets", 0))
            if not 0 <= buckets <= 2**32:
                raise self._error((*at, "buckets"), f"must lie in [0, 2**32], got {buckets}")
            rule = self._number_rule(at, entry, defaults) if role == "numerical" else AS_IT_IS
            own = self._integer((*at, "frequency_limit"), entry.get("frequency_limit", limit))
            max_ids = self._integer((*at, "max_ids"), entry.get("max_ids", 0))
            for key, value in (("frequency_limit", own), ("max_ids", max_ids)):
                if value < 0:
                    raise self._error((*at, key), f"must not be negative, got {value}")
            time = self._time_rule(at, entry) if role == "timestamp" else None
            rule_of_list = self._list_rule(at, entry) if role == "categorical_list" else None
            group = self._one_of((*at, "group"), entry.get("group", False), (True, False))
            own_missing = self._texts((*at, "missing"), entry.get("missing", list(missing)))
            bins, quantiles = self._bins((*at, "bins"), entry.get("bins", []))
            names = entry.get("name")
            for name in names if isinstance(names, list) else [names]:
                if not isinstance(name, str) or not (name or role == "ignored"):
                    raise self._error((*at, "name"), f"expected a text, got {name!r}")
                yield from (
                    Column(
                        name=each,
                        role=role,
                        type=kind if known else "hex",
                        rule=rule,
                        buckets=buckets,
                        missing=own_missing if role != "label" else (),
                        frequency_limit=own if role in _COUNTED else 0,
                        max_ids=max_ids,
                        time=time,
                        list=rule_of_list,
                        group=group,
                        vocabulary=entry.get("vocabulary", ""),
                        bins=bins,
                        quantiles=quantiles,
                    )
                    for each in _spelled_out(name)
                )

    def _entries(self, entries: list[Any]) -> list[Mapping[str, Any]]:
        """Returns the columns, with rules filled in from other columns of their vocabulary."""
        own = [self._mapping(("columns", i), values, _COLUMN) for i, values in enumerate(entries)]
        rules: dict[str, dict[str, Any]] = {}
        for i, entry in enumerate(own):
            name = entry.get("vocabulary", "")
            if not isinstance(name, str):
                raise self._error(("columns", i, "vocabulary"), f"expected a name, got {name!r}")
            shared = rules.setdefault(name, {})
            for key in filter(entry.__contains__, _CATEGORY if name else ()):
                if shared.setdefault(key, entry[key]) != entry[key]:
                    raise self._error(
                        ("columns", i, key),
                        f"is {entry[key]!r}, but {shared[key]!r} in another column of vocabulary "
                        f"{name!r}",
                    )
        return [{**rules[entry.get("vocabulary", "")], **entry} for entry in own]

    def _number_rule(
        self, at: tuple[Any, ...], entry: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> NumberRule:
        is_float, given = entry["type"] == "float", entry.get("transform", "log")
        known = ("log", "none", "standardise", "signed_log") if is_float else ("log",)
        transform = self._one_of((*at, "transform"), given, known)
        keys = {"min": 0, "offset": 1, "mean": 0, "deviation": 1}
        values = [entry.get(key, defaults.get(key, default)) for key, default in keys.items()]
        for key, value in zip(keys, values, strict=True):
            if not _is_number(value):
                raise self._error((*at, key), f"expected a number, got {value!r}")
            if key in entry and key not in _OF_TRANSFORM[transform]:
                raise self._error(
                    (*at, key),
                    f"does not apply to `transform: {transform}` (column "
                    f"{', '.join(_names_of(entry))}); remove it",
                )
        low, offset, mean, deviation = map(float, values)
        if transform == "log" and not low + offset > 0:
            raise self._error(at, f"`min` + `offset` must be above 0, got {low} + {offset}")
        if not deviation > 1 / _MOST_NUMBER:
            raise self._error((*at, "deviation"), f"must be above 0, got {deviation}")
        kind: Any = "standardise" if transform == "none" else transform
        rule = NumberRule(kind, low, offset, mean, deviation)
        return rule if is_float else AS_IT_IS

    def _bins(self, at: tuple[Any, ...], edges: Any) -> tuple[tuple[float, ...] | None, int]:
        """Returns the given edges, or the number of bins whose edges are to be found."""
        match = _QUANTILES.fullmatch(edges) if isinstance(edges, str) else None
        if match is not None and 2 <= int(match[1]) <= MOST_BINS:
            return None, int(match[1])
        is_numbers = isinstance(edges, list) and all(map(_is_number, edges))
        numbers = tuple(map(float, edges)) if is_numbers else ()
        if not is_numbers or len(edges) > _MAX_TEXTS or not all(map(lt, numbers, numbers[1:])):
            raise self._error(
                at,
                f"expected a list of up to {_MAX_TEXTS} ascending numbers, or quantiles:N with N "
                f"from 2 to {MOST_BINS}, got {edges!r}",
            )
        return numbers or None, 0

    def _time_rule(self, at: tuple[Any, ...], entry: Mapping[str, Any]) -> TimeRule:
        zone = read_zone(str(entry.get("time_zone", "UTC")))
        if zone is None:
            raise self._error(
                (*at, "time_zone"),
                f'expected UTC or a fixed offset such as "+01:00", got {entry["time_zone"]!r}; '
                "libraries disagree on the rules of other zones",
            )
        features = entry.get("features", [])
        if not isinstance(features, list) or any(f not in TIME_FEATURES for f in features):
            raise self._error(
                (*at, "features"), f"expected a list of {', '.join(TIME_FEATURES)}, got {features}"
            )
        chosen = tuple(feature for feature in TIME_FEATURES if feature in features)
        rule = TimeRule(str(entry.get("format", "iso8601")), zone, chosen)
        if problem := rule.problem():
            raise self._error((*at, "format"), f"{problem}, got {rule.format!r}")
        return rule

    def _list_rule(self, at: tuple[Any, ...], entry: Mapping[str, Any]) -> ListRule:
        length = self._integer((*at, "max_length"), entry.get("max_length", 50))
        if not 1 <= length <= _MAX_LENGTH:
            raise self._error((*at, "max_length"), f"must lie in [1, {_MAX_LENGTH}], got {length}")
        separators = [entry.get("separator", "|"), entry.get("weight_separator", "")]
        dialect = self._values.get("dialect", {})
        taken = [dialect.get("delimiter", ","), dialect.get("quote", '"')]
        for key, one in zip(("separator", "weight_separator"), separators, strict=True):
            if one == "" and key == "weight_separator":
                continue
            if not isinstance(one, str) or not _ONE_CHARACTER.fullmatch(one) or one in taken:
                raise self._error(
                    (*at, key),
                    "expected one ASCII character that is not part of numbers and not the "
                    f"delimiter, the quote or another separator, got {one!r}",
                )
            taken.append(one)
        keep = self._one_of((*at, "keep"), entry.get("keep", "last"), ("last", "first"))
        pooling = self._one_of((*at, "pooling"), entry.get("pooling", "mean"), ("mean", "sum"))
        return ListRule(separators[0], separators[1], length, keep, pooling)

    def _with_label(
        self, columns: tuple[Column, ...], label: Any, header: bool
    ) -> tuple[Column, ...]:
        labels = [column.name for column in columns if column.role == "label"]
        if not isinstance(label, str) or not label:
            raise self._error(("label",), "expected the label's column, as in `{column: click}`")
        if not labels and label in (column.name for column in columns):  # drafts may do this
            own = Column(name=label, role="label")
            return tuple(own if column.name == label else column for column in columns)
        if header and not labels:
            return (Column(name=label, role="label"), *columns)
        if labels and labels != [label]:
            raise self._error(
                ("label", "column"), f"{label!r}: but `columns` has the label {', '.join(labels)}"
            )
        if not labels:
            raise self._error(
                ("label", "column"),
                f"{label!r}: a file without a header needs one entry with `role: label` in the "
                "list of columns, at the label's position in a row",
            )
        return columns

    def _split(self, value: Any, columns: tuple[Column, ...]) -> dict[str, Any]:
        """Returns the settings of the split."""
        if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in SPLIT_KINDS:
            raise self._error(
                ("split",), f"expected exactly one of {', '.join(SPLIT_KINDS)}, got {value!r}"
            )
        ((kind, given),) = value.items()
        at = ("split", kind)
        if kind == "files":
            named = self._mapping(at, given, _SPLITS)
            files = [named.get(split, []) for split in _SPLITS]
            lists = tuple(tuple(f) if isinstance(f, list) else (f,) for f in files)
            if not all(isinstance(f, str) for names in lists for f in names) or not lists[0]:
                raise self._error(at, "expected the file names for train, validation and test")
            return {"split": kind, "values": lists}
        if kind == "time":
            return self._time_split(at, given, columns)
        if kind == "random":
            return self._random_split(at, given, columns)
        return {
            "split": kind,
            "values": self._three(at, given, (int, float)[: 1 + (kind != "rows")]),
        }

    def _time_split(
        self, at: tuple[Any, ...], given: Any, columns: tuple[Column, ...]
    ) -> dict[str, Any]:
        named = self._mapping(at, given, _TIME_SPLIT)
        times = {column.name: column.time for column in columns if column.time is not None}
        name = named.get("column", next(iter(times), None))
        if name not in [*times] or (len(times) > 1 and "column" not in named):
            raise self._error(
                at,
                f"column must be a timestamp column; the schema has {', '.join(times) or 'none'}",
            )
        rule = TimeRule("iso8601", times[name].zone_minutes)
        validation, test = (
            rule.milliseconds(str(named.get(key)).encode()) for key in _TIME_SPLIT[:2]
        )
        if validation is None or test is None or validation >= test:
            raise self._error(
                at,
                "expected the first time of validation, then a later one of test, such as "
                f'{{validation: "2026-03-01", test: "2026-03-02T12:00"}}, got {given}',
            )
        return {"split": "time", "values": (validation, test), "split_column": name}

    def _random_split(
        self, at: tuple[Any, ...], given: Any, columns: tuple[Column, ...]
    ) -> dict[str, Any]:
        named = self._mapping(at, given, _RANDOM_SPLIT)
        values = self._three(at, named.get("fractions"), (int, float))
        if any(not 0 <= value <= 1 for value in values) or abs(sum(values) - 1) > 1e-6:
            raise self._error((*at, "fractions"), f"must lie in [0, 1] and sum to 1, got {values}")
        by = named.get("by", "row")
        if by != "row" and by not in (c.name for c in columns if c.role != "label"):
            raise self._error(
                (*at, "by"),
                f"expected the name of a column other than the label, or row, got {by!r}",
            )
        seed = self._integer((*at, "seed"), named.get("seed", 0))
        if not 0 <= seed < 2**64:
            raise self._error((*at, "seed"), f"must lie in [0, 2**64), got {seed}")
        column = "" if by == "row" else by
        return {"split": "random", "values": values, "split_column": column, "seed": seed}

    def _three(self, at: tuple[Any, ...], given: Any, types: tuple[type, ...]) -> tuple[Any, ...]:
        if (
            not isinstance(given, list)
            or len(given) != 3
            or not all(type(number) in types for number in given)
        ):
            raise self._error(at, f"expected three numbers (train, validation, test), got {given}")
        return tuple(given)

    def _common(self, defaults: Mapping[str, Any], key: str, default: int) -> int:
        """Returns the value of a key that all integer columns share."""
        own = {
            self._integer(("columns", i, key), entry.get(key, defaults.get(key, default)))
            for i, entry in enumerate(self._values["columns"])
            if entry.get("role") == "numerical" and entry.get("type") == "int"
        }
        if len(own) > 1:
            raise self._error(
                ("columns",), f"all integer columns must have the same `{key}` so far, got {own}"
            )
        return own.pop() if own else default

    def _mapping(self, at: tuple[Any, ...], value: Any, keys: tuple[str, ...]) -> dict[str, Any]:
        if value is None:
            raise self._error(at, f"is missing; its keys are {', '.join(keys)}")
        if not isinstance(value, dict):
            raise self._error(at, f"expected `key: value` with {', '.join(keys)}, got {value!r}")
        for key in value:
            if key not in keys:
                raise self._error((*at, key), f"unknown key; expected one of {', '.join(keys)}")
        return value

    def _one_of(self, at: tuple[Any, ...], value: Any, choices: tuple[Any, ...]) -> Any:
        if value not in choices or (isinstance(choices[0], bool) and not isinstance(value, bool)):
            names = ", ".join(str(c).lower() for c in choices)
            raise self._error(at, f"must be one of {names}, got {value!r}")
        return value

    def _texts(self, at: tuple[Any, ...], value: Any) -> tuple[str, ...]:
        """Returns a list of texts; they must be quoted, since YAML reads a bare 1 as a number."""
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self._error(at, f'expected a list of quoted texts: ["-1", "n/a"], got {value}')
        if len(value) > _MAX_TEXTS or any(len(text.encode()) > _MAX_TEXTS for text in value):
            raise self._error(at, f"at most {_MAX_TEXTS} texts of {_MAX_TEXTS} bytes are allowed")
        return tuple(value)

    def _integer(self, at: tuple[Any, ...], value: Any) -> int:
        if type(value) is not int:
            raise self._error(at, f"must be an integer, got {value!r}")
        return value

    def _error(self, at: tuple[Any, ...], message: str) -> PreprocError:
        key = ".".join(str(name) for name in at if not isinstance(name, int)) or "the schema"
        line = self._document.line(*at)
        return PreprocError(f"{self._path}:{line}: {key}: {message}", path=self._path, line=line)


def _rows_of(dialect: tuple[str, str, bool], columns: tuple[Column, ...]) -> RowFormat:
    """Returns a row format whose fields are not features."""
    delimiter, quote, header = dialect
    return RowFormat(
        delimiter=delimiter.encode(),
        quote=quote.encode(),
        columns=columns,
        numbers=(0,) * len(columns),
        has_header=header,
    )


def _idle_keys(
    entry: Mapping[str, Any], label: str, split: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yields the keys of a column that would have no effect, and why."""
    names = [each for name in _names_of(entry) for each in _spelled_out(name)]
    role, splits = entry["role"], split.get("split_column") in names
    if label in names and role != "label":
        yield from ((key, "does not apply to the label") for key in entry if key not in _DRAFTED)
    elif role == "ignored" and "missing" in entry:
        if not (entry.get("group") or splits or split["split"] == "random"):
            yield "missing", "an ignored column is read only for a random split"
    elif role == "timestamp" and not entry.get("features"):
        yield from ((key, "applies only with `features`") for key in _OF_FEATURES if key in entry)
        if "time_zone" in entry and not splits:
            yield "time_zone", "applies only with `features`, or if these times split the rows"


def _names_of(entry: Mapping[str, Any]) -> list[str]:
    name = entry["name"]
    return name if isinstance(name, list) else [name]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST_NUMBER


def _spelled_out(name: str) -> Iterator[str]:
    """Yields the names that a pattern such as `C{1..26}` stands for."""
    match = _RANGE.fullmatch(name)
    if match is None:
        yield name
        return
    before, first, last, after = match.groups()
    for number in range(int(first), int(last) + 1):
        yield f"{before}{number}{after}"
