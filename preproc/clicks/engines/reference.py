# SPDX-License-Identifier: Apache-2.0
"""The reference engine: the rules in plain NumPy, in memory.

Tests compare the other engines with it, and it runs where the native kernel cannot be built. It is
about 50 times slower than the native engine and holds all rows in memory (about 4 kB each).
"""

import dataclasses
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from preproc.clicks.columns import EncodeStage, SplitColumnsWriter
from preproc.clicks.dictionaries import Dictionaries, Keys
from preproc.clicks.engine import EngineJob, EngineResult, FileRows, bounds_of
from preproc.clicks.layouts.lists import unit_files
from preproc.clicks.rules import (
    SPLITS,
    Bounds,
    ClicksSemantics,
    bin_categories,
    order_dictionary,
    order_wide_keys,
    shuffle_keys,
    transform_decimal,
    transform_numerical,
)
from preproc.clicks.schema.grammar import REJECT_REASONS, read_category, read_list, reject_reason
from preproc.clicks.schema.row_format import KeyType, Role, RowFormat
from preproc.files.errors import PreprocError
from preproc.files.input_file import MAX_LINE_BYTES, InputFile, line_too_long
from preproc.files.quarantine import RejectedRow, check_rejected_rows
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import ListColumn
from recsys.data.positioned_io import write_at


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedRows:
    """Raw values of n valid rows.

    Attributes:
        label: [n].
        integers: [n, M]; 0 where the field is empty.
        integers_missing: [n, M], True where the field is empty.
        decimals: [n, M], of columns of decimal numbers in place of integers; 0 elsewhere.
        categories: [n, F]; 0 where the field is empty, or the category no number of 32 bits.
        wide_keys: [n, F], texts and other integers; None elsewhere.
        categories_missing: [n, F], True where the field is empty.
        split: [n] number of each row's split; 0 where its own number decides.
        split_value: [n] what gave the row to its split.
        group: [n] group of each row.
        lists: [n, number of columns of lists], keys and weights of the elements of each.
    """

    label: npt.NDArray[np.bool_]
    integers: npt.NDArray[np.int64]
    integers_missing: npt.NDArray[np.bool_]
    decimals: npt.NDArray[np.float64]
    categories: npt.NDArray[np.uint32]
    wide_keys: npt.NDArray[np.object_]
    categories_missing: npt.NDArray[np.bool_]
    split: npt.NDArray[np.int64]
    split_value: npt.NDArray[np.uint64]
    group: npt.NDArray[np.int64]
    lists: npt.NDArray[np.object_]

    @property
    def num_ids(self) -> int:
        """Columns of one category a row."""
        return int(self.categories.shape[1])

    def keys_of(self, column: int, key_type: KeyType, rows: int) -> npt.NDArray[Any]:
        """Returns the categories of a column in the first rows."""
        if column >= self.num_ids:
            elements = itertools.chain(*self.lists[:rows, column - self.num_ids])
            keys = np.array([None, *(key for key, _ in elements)], np.object_)[1:]
            return keys.astype(np.uint32) if key_type == "uint32" else keys
        of_column = self.categories if key_type == "uint32" else self.wide_keys
        return of_column[:rows, column][~self.categories_missing[:rows, column]]

    def taken(self, order: npt.NDArray[np.int64]) -> "ParsedRows":
        """Returns the rows in another order."""
        return ParsedRows(*(getattr(self, field.name)[order] for field in dataclasses.fields(self)))


def iterate_lines(file: InputFile, row_format: RowFormat) -> Iterator[tuple[int, bytes]]:
    """Yields byte offset and row of every line, without its line end.

    Raises:
        PreprocError: a line is longer than any row.
    """
    what = row_format.description
    offset, rest = 0, b""
    for block in file.blocks():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield offset, _row_of(file, offset, line, what)
            offset += len(line) + 1
        if len(rest) > MAX_LINE_BYTES + 1:
            raise line_too_long(file.path, offset, what)
    if rest:
        yield offset, _row_of(file, offset, rest, what)


def _row_of(file: InputFile, offset: int, line: bytes, what: str) -> bytes:
    row = line.removesuffix(b"\r")
    if len(row) > MAX_LINE_BYTES:
        raise line_too_long(file.path, offset, what)
    return row


def read_rows(
    file: InputFile, row_format: RowFormat, semantics: ClicksSemantics
) -> tuple[ParsedRows, list[RejectedRow]]:
    """Returns the values of a file's valid rows, and its rejected rows.

    Categories are taken modulo `category_modulus`; bins of numbers follow them if wanted.
    """
    valid, valid_rows, rejected = [], [], []
    for number, (offset, row) in enumerate(iterate_lines(file, row_format), start=1):
        if number == 1 and row_format.has_header:
            continue
        reason = reject_reason(row, row_format)
        if reason is None:
            valid.append(row_format.fields(row) or [])
            valid_rows.append(row)
        else:
            rejected.append(RejectedRow(file.path.name, offset, number, reason, row))

    def texts(role: Role) -> npt.NDArray[np.object_]:
        """Returns the fields of a role, in the order of the features."""
        numbers = [i for i, own in enumerate(row_format.roles) if own == role]
        numbers.sort(key=lambda number: row_format.columns[number])
        cells = [[fields[number] for number in numbers] for fields in valid]
        return np.array(cells, dtype=object).reshape(len(valid), len(numbers))

    numbers = texts("numerical")
    integers_missing = numbers == b""
    is_decimal = decimal_columns(row_format)
    filled = np.where(integers_missing, b"0", numbers)
    integers = np.where(is_decimal, b"0", filled).astype(np.int64)
    decimals = np.where(is_decimal, filled, b"0").astype(np.float64) + 0.0  # -0 is 0
    categories, wide_keys, categories_missing, lists = _read_categories(
        valid, row_format, semantics.key_types
    )
    if semantics.category_modulus is not None:
        categories = (categories.astype(np.uint64) % semantics.category_modulus).astype(np.uint32)
    if semantics.bin_numerical:
        bins = np.where(integers_missing, 0, bin_categories(integers, semantics))
        categories = np.hstack([categories, bins.astype(np.uint32)])
        categories_missing = np.hstack([categories_missing, integers_missing])
    split_value = np.zeros(len(valid), np.uint64)
    if row_format.split is not None:
        split_value = split_values(list(zip(valid_rows, valid, strict=True)), row_format)
    cuts = row_format.split.cuts if row_format.split else ()
    group = row_format.group_field
    labels = texts("label")[:, 0] if "label" in row_format.roles else [b""] * len(integers)
    return ParsedRows(
        label=np.array([f in row_format.positive for f in labels], np.bool_),
        integers=integers,
        integers_missing=integers_missing,
        decimals=decimals,
        categories=categories,
        wide_keys=wide_keys,
        categories_missing=categories_missing,
        split=np.searchsorted(np.array(cuts, np.uint64), split_value, side="right"),
        split_value=split_value,
        lists=lists,
        group=np.array([-1 if group is None else group_of(f[group]) for f in valid], np.int64),
    ), rejected


def _read_categories(
    rows: list[list[bytes]], row_format: RowFormat, key_types: Sequence[KeyType]
) -> tuple[
    npt.NDArray[np.uint32],
    npt.NDArray[np.object_],
    npt.NDArray[np.bool_],
    npt.NDArray[np.object_],
]:
    """Returns categories, wide keys, missing ones and lists of rows; see `ParsedRows`."""
    num_lists = row_format.roles.count("categorical_list")
    lists = np.full((len(rows), num_lists), None, np.object_)
    categories = np.zeros((len(rows), row_format.num_categorical), np.uint32)
    wide_keys = np.full(categories.shape, None, np.object_)
    missing = np.zeros(categories.shape, np.bool_)
    for field, role in enumerate(row_format.roles):
        column, cells = row_format.columns[field], [fields[field] for fields in rows]
        kind, buckets = row_format.types[field], row_format.buckets[field]
        time, of_list = row_format.times[field], row_format.lists[field]
        if role == "categorical":
            target = categories if key_types[column] == "uint32" else wide_keys
            target[:, column] = [
                read_category(text, kind, buckets) if text else 0 for text in cells
            ]
            missing[:, column] = [not text for text in cells]
        if of_list is not None:
            for number, text in enumerate(cells):
                read = read_list(text, kind, buckets, of_list) if text else []
                lists[number, column] = read
        if time is not None and time.features:
            columns = slice(column, column + len(time.features))
            times = [time.milliseconds(text) for text in cells]
            categories[:, columns] = [time.categories(each or 0) for each in times]
            missing[:, columns] = np.array([[not text] for text in cells])
    return categories, wide_keys, missing, lists


def split_values(
    rows: Sequence[tuple[bytes, Sequence[bytes]]], row_format: RowFormat
) -> npt.NDArray[np.uint64]:
    """Returns what gives valid rows to their splits: times or hashes.

    Args:
        rows: bytes of each row, and its fields.
        row_format: has a rule for splits.
    """
    rule = row_format.split
    assert rule is not None
    if rule.kind == "time":
        assert rule.field is not None
        time = row_format.times[rule.field]
        assert time is not None
        times = [time.milliseconds(fields[rule.field]) or 0 for _, fields in rows]
        return np.array(times, np.uint64)
    texts = (row if rule.field is None else fields[rule.field] or row for row, fields in rows)
    hashes = np.array([xxhash.xxh64_intdigest(text) for text in texts], np.uint64)
    return shuffle_keys(rule.seed, hashes) >> np.uint64(1)


def group_of(field: bytes) -> int:
    """Returns 63 bits for the group of a row, else -1."""
    return xxhash.xxh64_intdigest(field) >> 1 if field else -1


def decimal_columns(row_format: RowFormat) -> npt.NDArray[np.bool_]:
    """Returns [M], True for numerical columns of decimal numbers."""
    types = {
        column: kind
        for role, column, kind in zip(
            row_format.roles, row_format.columns, row_format.types, strict=True
        )
        if role == "numerical"
    }
    return np.array([types[column] == "float" for column in range(len(types))], np.bool_)


def build_dictionaries(rows: ParsedRows, counted: int, semantics: ClicksSemantics) -> list[Keys]:
    """Returns the categories of each column that are kept, in id order.

    Args:
        rows: all rows.
        counted: number of rows, from the first, whose categories are counted.
        semantics: gives the limits.
    """
    dictionaries = []
    for column, key_type in enumerate(semantics.key_types):
        limit, max_ids = semantics.limits(column)
        ordered: Any
        categories = rows.keys_of(column, key_type, counted)
        if key_type == "uint32":
            values, counts = np.unique(categories, return_counts=True)
            ordered = order_dictionary(values, counts.astype(np.uint64), limit)
        else:
            ordered = order_wide_keys(Counter(categories), limit)
        dictionaries.append(Keys.of(key_type, ordered[: max_ids or None]))
    return dictionaries


def encode(rows: ParsedRows, dictionaries: list[Keys], semantics: ClicksSemantics) -> ClickColumns:
    """Returns the columns of a dataset, with float32 numerical features."""
    ids = []
    for column, dictionary in enumerate(dictionaries[: rows.num_ids]):
        id_of = {category: i for i, category in enumerate(dictionary, start=1)}
        source = rows.categories if dictionary.type == "uint32" else rows.wide_keys
        categories = source[:, column].tolist()
        looked_up = np.array([id_of.get(c, 0) for c in categories], dtype=np.int32)
        ids.append(np.where(rows.categories_missing[:, column], 0, looked_up).astype(np.int32))
    numerical = transform_numerical(rows.integers, rows.integers_missing, semantics)
    schema = semantics.schema
    for column, declared in enumerate(schema.named("numerical") if schema else ()):
        if declared.type == "float":
            numerical[:, column] = transform_decimal(rows.decimals[:, column], declared.rule)
    lists = []
    for column, dictionary in enumerate(dictionaries[rows.num_ids :]):
        id_of = {category: i for i, category in enumerate(dictionary, start=1)}
        of_column = rows.lists[:, column]
        elements = list(itertools.chain(*of_column))
        lists.append(
            ListColumn(
                np.array([id_of.get(key, 0) for key, _ in elements], np.int32),
                np.cumsum([0, *map(len, of_column)]),
                np.array([weight for _, weight in elements], np.float32),
            )
        )
    return ClickColumns(rows.label, numerical, tuple(ids), tuple(lists))


def write_lists(
    stage: EncodeStage, columns: ClickColumns, bounds: Bounds, spec: FeatureSpec
) -> None:
    """Writes the lists of all rows."""
    with unit_files(stage.lists, "all", SPLITS, spec) as files:
        for split in SPLITS if spec.lists else ():
            rows = columns[slice(*bounds[split])]
            for lists, fds in zip(rows.lists, files[split], strict=True):
                lengths = np.diff(lists.offsets).astype(np.uint32)
                for fd, values in zip(fds, (lists.ids, lengths, lists.weights), strict=True):
                    if fd >= 0 and values is not None:
                        write_at(fd, np.ascontiguousarray(values), 0)


def _final_order(num_rows: int, train: tuple[int, int], seed: int | None) -> npt.NDArray[np.int64]:
    """Returns the order of all rows, those of `train` by shuffle key."""
    order = np.arange(num_rows)
    if seed is not None:
        keys = shuffle_keys(seed, np.arange(*train, dtype=np.uint64))
        order[slice(*train)] = train[0] + np.argsort(keys, kind="stable")
    return order


def run(engine_job: EngineJob) -> EngineResult:
    """Prepares a dataset with NumPy."""
    job = engine_job.job
    parsed, rejected, files = [], [], []
    for file, row_format in zip(engine_job.inputs, engine_job.formats, strict=True):
        rows, rejected_rows = read_rows(file, row_format, job.semantics)
        parsed.append(rows)
        rejected += rejected_rows
        valid = len(rows.label)
        counts = {r: sum(row.reason == r for row in rejected_rows) for r in REJECT_REASONS}
        values = rows.split_value.tolist()
        files.append(
            FileRows(
                rows=valid,
                lines=valid + len(rejected_rows),
                rejected=counts,
                split_rows=tuple(np.bincount(rows.split, minlength=len(SPLITS)).tolist()),
                split_values=(min(values, default=2**64 - 1), max(values, default=0)),
            )
        )
    engine_job.check_inputs()
    check_rejected_rows(
        *(len(rejected), sum(f.lines for f in files), job.max_bad_fraction, rejected),
        engine_job.explained,
    )
    order = np.argsort(np.concatenate([p.split for p in parsed]), kind="stable")
    rows = ParsedRows(
        *(
            np.concatenate([getattr(p, field.name) for p in parsed])
            for field in dataclasses.fields(ParsedRows)
        )
    ).taken(order)
    if len(rows.label) == 0:
        raise PreprocError(f"`input` {job.input}: holds no valid row")
    bounds = bounds_of(files, job.semantics)
    counted = len(rows.label) if job.semantics.dictionary_days == "all" else bounds["train"][1]
    given = engine_job.dictionaries
    dictionaries = given.load() if given else build_dictionaries(rows, counted, job.semantics)
    order = _final_order(len(rows.label), bounds["train"], job.semantics.shuffle_seed)
    rows = rows.taken(order)
    columns = encode(rows, dictionaries, job.semantics)

    staging = engine_job.workspace.staging_dir("reference")
    shutil.rmtree(staging)  # this engine does not resume an interrupted run
    staging.mkdir()
    stage = EncodeStage(staging, job)
    saved = Dictionaries(staging, job.semantics.key_types)
    for column, keys in enumerate(dictionaries):
        saved.save(column, keys)
    spec = job.semantics.feature_spec(saved.cardinalities)
    with SplitColumnsWriter(stage, spec, bounds).open() as writer:
        write_lists(stage, columns, bounds, spec)
        clicks = writer.write(0, columns, rows.group)
        writer.join_lists(["all"])
    return stage.finish(
        engine={"name": "reference"},
        files=tuple(files),
        bounds=bounds,
        clicks=clicks,
        dictionaries=saved,
        rejected=rejected,
        is_shuffled=True,
    )
