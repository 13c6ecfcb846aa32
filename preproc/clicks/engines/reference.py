# SPDX-License-Identifier: Apache-2.0
"""The reference engine: the rules in plain NumPy, in memory.

Tests compare the other engines with it, and it runs if the native kernel cannot be built. It is
about 50 times slower than the native engine and holds all rows in memory (about 4 kB each).
"""

import dataclasses
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.clicks.columns import EncodeStage, SplitColumnsWriter
from preproc.clicks.dictionaries import Dictionaries, Keys
from preproc.clicks.engine import EngineJob, EngineResult, FileRows, bounds_of
from preproc.clicks.engines.row_values import groups, split_values
from preproc.clicks.growth.days import Growth
from preproc.clicks.growth.eviction import save_reused, with_evicted
from preproc.clicks.growth.rare_counts import read_counts, write_counts
from preproc.clicks.layouts.lists import unit_files
from preproc.clicks.rules import (
    SPLITS,
    Bounds,
    ClicksSemantics,
    bin_categories,
    order_keys,
    shuffle_keys,
    transform_decimal,
    transform_numerical,
)
from preproc.clicks.schema.grammar import REJECT_REASONS, read_category, read_fields, read_list
from preproc.clicks.schema.row_format import Column, Edges, RowFormat
from preproc.files.errors import PreprocError
from preproc.files.input_file import MAX_LINE_BYTES, InputFile, line_too_long, without_mark
from preproc.files.quarantine import RejectedRow
from preproc.files.raw.blank_end import row_blocks
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.list_columns import ListColumn
from recsys.data.positioned_io import write_at
from recsys.data.quantiles import quantile_edges


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedRows:
    """Raw values of n valid rows.

    Attributes:
        label: [n].
        numbers: [n, M]; NaN for an empty field.
        categories: [n, F], numbers or texts; None for an empty field.
        lists: [n, number of list columns], categories and weights of the elements.
        split: [n] index of each row's split; 0 if the row number decides.
        split_value: [n] value that decided the row's split.
        group: [n] group of each row.
    """

    label: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.float64]
    categories: npt.NDArray[np.object_]
    lists: npt.NDArray[np.object_]
    split: npt.NDArray[np.int64]
    split_value: npt.NDArray[np.uint64]
    group: npt.NDArray[np.int64]

    @property
    def num_ids(self) -> int:
        """Number of columns with one category per row."""
        return int(self.categories.shape[1])

    def keys_of(self, column: int, rows: int) -> list[int | bytes]:
        """Returns the categories of a column in the first rows."""
        if column >= self.num_ids:
            return [key for key, _ in itertools.chain(*self.lists[:rows, column - self.num_ids])]
        return [key for key in self.categories[:rows, column] if key is not None]

    def taken(self, order: npt.NDArray[np.int64]) -> "ParsedRows":
        """Returns the rows in another order."""
        return ParsedRows(*(getattr(self, field.name)[order] for field in dataclasses.fields(self)))


def iterate_lines(file: InputFile, row_format: RowFormat) -> Iterator[tuple[int, bytes]]:
    """Yields the byte offset and the bytes of every line, without its line end.

    Raises:
        PreprocError: a line is longer than any row.
    """
    what = row_format.description
    rest = b""
    offset, blocks = without_mark(row_blocks(file, row_format.blank))
    for block in blocks:
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

    Categories are taken modulo `category_modulus`. The bins of numbers follow them if the rules
    ask for bins; for a schema, `add_bins` adds them.
    """
    valid: list[list[bytes]] = []
    rejected = []
    for number, (offset, row) in enumerate(iterate_lines(file, row_format), start=1):
        if number == 1 and row_format.has_header:
            continue
        read = read_fields(row, row_format)
        if isinstance(read, list):
            valid.append(read)
        else:
            rejected.append(RejectedRow(file.name, offset, number, read, row))
    label = np.zeros(len(valid), np.bool_)
    numbers = np.full((len(valid), row_format.count("numerical")), np.nan)
    categories, lists = (
        np.full((len(valid), row_format.count(role)), None, np.object_)
        for role in ("categorical", "categorical_list")
    )
    for field, (column, first) in enumerate(
        zip(row_format.columns, row_format.numbers, strict=True)
    ):
        cells = [fields[field] for fields in valid]
        buckets = column.buckets or semantics.category_modulus or 0
        if column.role == "label":
            label[:] = [text in row_format.positive for text in cells]
        elif column.role == "numerical":
            numbers[:, first] = [float(text) + 0.0 if text else np.nan for text in cells]  # -0 is 0
        elif column.role == "categorical_list":
            for row_number, text in enumerate(cells):
                lists[row_number, first] = _elements(text, column)
        elif keys := [_keys(text, column, buckets) for text in cells]:
            categories[:, first : first + len(keys[0])] = np.array(keys, np.object_)
    if semantics.bin_numerical:
        bins = bin_categories(np.nan_to_num(numbers).astype(np.int64), semantics)
        of_numbers = bins.astype(np.object_)
        of_numbers[np.isnan(numbers)] = None
        categories = np.hstack([categories, of_numbers])
    values = split_values(valid, row_format)
    cuts = row_format.split.cuts if row_format.split else ()
    return ParsedRows(
        label=label,
        numbers=numbers,
        categories=categories,
        lists=lists,
        split=np.searchsorted(np.array(cuts, np.uint64), values, side="right"),
        split_value=values,
        group=groups(valid, row_format),
    ), rejected


def find_edges(rows: ParsedRows, counted: int, semantics: ClicksSemantics) -> Edges:
    """Returns the bin edges that the schema does not give, from the first `counted` rows."""
    edges = {}
    schema = semantics.schema
    for number, column in enumerate(schema.named("numerical") if schema else ()):
        if column.lacks_edges:
            numbers = rows.numbers[:counted, number]
            values, counts = np.unique(numbers[~np.isnan(numbers)], return_counts=True)
            edges[column.name] = quantile_edges(values, counts, column.quantiles)
    return edges


def add_bins(rows: ParsedRows, semantics: ClicksSemantics) -> None:
    """Adds the bins of numbers to the categories of rows."""
    schema = semantics.schema
    if schema is None:
        return
    names = [column.name for column in schema.named("categorical")]
    for number, column in enumerate(schema.named("numerical")):
        if column.bins is not None:
            values = rows.numbers[:, number]
            bins = np.searchsorted(column.bins, values, side="right").astype(np.object_)
            bins[np.isnan(values)] = None
            rows.categories[:, names.index(column.derived[0].name)] = bins


def _keys(text: bytes, column: Column, buckets: int) -> list[int | bytes | None]:
    """Returns the category or time features of a field; None if it is missing."""
    if column.role == "categorical":
        return [read_category(text, column.type, buckets) if text else None]
    time = column.time.milliseconds(text) if column.time else None
    if column.time is None or time is None:
        return [None] * len(column.derived)
    return [*column.time.categories(time)]


def _elements(text: bytes, column: Column) -> object:
    """Returns the categories and weights of a valid list."""
    assert column.list is not None
    return read_list(text, column.type, column.buckets, column.list) if text else []


def build_dictionaries(
    rows: ParsedRows, counted: int, semantics: ClicksSemantics, known: Dictionaries | None = None
) -> tuple[list[Keys], list[dict[Any, int]]]:
    """Makes the dictionaries from the first `counted` rows.

    Args:
        rows: all rows.
        counted: rows whose categories are counted.
        semantics: limits and vocabularies.
        known: ids and counts of the day before.

    Returns:
        For each column, its categories in id order, and the counts of those without an id.
    """
    dictionaries, rare = [], list[dict[Any, int]]()
    pairs = zip(semantics.key_types, semantics.vocabularies, strict=True)
    for column, (key_type, vocabulary) in enumerate(pairs):
        limit, max_ids = semantics.limits(column)
        counts = Counter(itertools.chain(*(rows.keys_of(each, counted) for each in vocabulary)))
        before: list[Any] = []
        if known is not None:
            before = list(known.load_column(column))
            counts.update(read_counts(known.counts_path(column), key_type))
        for key in before:
            counts.pop(key, None)
        is_full = bool(before) and 0 < max_ids <= len(before)
        new = [] if is_full else order_keys(counts, limit)
        if max_ids:
            new = new[: max_ids - len(before)]
        dictionaries.append(Keys.of(key_type, [*before, *new]))
        rare.append({} if is_full else {k: n for k, n in counts.items() if n < limit})
    return dictionaries, rare


def _reuse_ids(
    dictionaries: list[Keys], growth: Growth | None, semantics: ClicksSemantics
) -> list[npt.NDArray[np.int64]]:
    """Gives ids of the day before to new categories, in place; see `growth.eviction`.

    Returns:
        The places that were reused in each column; empty without eviction.
    """
    if growth is None or growth.known is None or semantics.evict_after is None:
        return []
    reused = []
    for column, keys in enumerate(dictionaries):
        dictionaries[column], places = with_evicted(growth, column, keys, semantics)
        reused.append(places)
    return reused


def encode(rows: ParsedRows, dictionaries: list[Keys], semantics: ClicksSemantics) -> ClickColumns:
    """Returns the columns of a dataset, with float32 numerical features."""
    tables = [{key: i for i, key in enumerate(keys, start=1)} for keys in dictionaries]
    singles, of_lists = tables[: rows.num_ids], tables[rows.num_ids :]
    missing, schema = np.isnan(rows.numbers), semantics.schema
    rules = {
        column: declared.rule
        for column, declared in enumerate(schema.named("numerical") if schema else ())
        if declared.type == "float"
    }
    whole = np.where(missing, 0, rows.numbers)
    whole[:, list(rules)] = 0
    numerical = transform_numerical(whole.astype(np.int64), missing, semantics)
    for column, rule in rules.items():
        values = np.where(missing[:, column], rule.mean, rows.numbers[:, column])
        numerical[:, column] = transform_decimal(values, rule)
    lists = []
    for table, of_column in zip(of_lists, rows.lists.T, strict=True):
        elements = list(itertools.chain(*of_column))
        lists.append(
            ListColumn(
                np.array([table.get(key, 0) for key, _ in elements], np.int32),
                np.cumsum([0, *map(len, of_column)]),
                np.array([weight for _, weight in elements], np.float32),
            )
        )
    ids = (
        np.array([table.get(key, 0) for key in column], np.int32)
        for table, column in zip(singles, rows.categories.T, strict=True)
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
    """Returns the order of all rows; those of `train` are ordered by shuffle key."""
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
    engine_job.check_rejected_rows(len(rejected), sum(f.lines for f in files), rejected)
    order = np.argsort(np.concatenate([p.split for p in parsed]), kind="stable")
    rows = ParsedRows(
        *(
            np.concatenate([getattr(p, field.name) for p in parsed])
            for field in dataclasses.fields(ParsedRows)
        )
    ).taken(order)
    if len(rows.label) == 0:
        raise PreprocError(f"`input` {job.input}: has no valid row", setting="input")
    bounds = bounds_of(files, job.semantics)
    counted = len(rows.label) if job.semantics.dictionary_days == "all" else bounds["train"][1]
    edges = find_edges(rows, counted, job.semantics)
    engine_job = engine_job.with_edges(edges)
    job = engine_job.job
    add_bins(rows, job.semantics)
    given, growth = engine_job.dictionaries, engine_job.growth
    known = None if growth is None else growth.known
    dictionaries, rare = (
        (given.load(), []) if given else build_dictionaries(rows, counted, job.semantics, known)
    )
    reused = _reuse_ids(dictionaries, growth, job.semantics)
    order = _final_order(len(rows.label), bounds["train"], job.semantics.shuffle_seed)
    rows = rows.taken(order)
    columns = encode(rows, dictionaries, job.semantics)

    staging = engine_job.workspace.staging_dir("reference")
    shutil.rmtree(staging)  # this engine does not resume an interrupted run
    staging.mkdir()
    stage = EncodeStage(staging, job)
    saved = Dictionaries(
        staging,
        job.semantics.key_types,
        has_counts=growth is not None,
        has_reused=bool(reused),
    )
    for column, keys in enumerate(dictionaries):
        saved.save(column, keys)
    for column, of_column in enumerate(rare if growth else ()):
        write_counts(saved.counts_path(column), saved.key_types[column], of_column)
    for column, places in enumerate(reused):
        save_reused(saved.reused_path(column), places)
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
        edges=edges,
        is_shuffled=True,
    )
