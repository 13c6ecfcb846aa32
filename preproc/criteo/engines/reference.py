# SPDX-License-Identifier: Apache-2.0
"""The reference engine: the definition in NumPy, short and obvious, in memory.

It is the oracle of the tests and works where the native kernel cannot be built. About 50 times
slower than the native engine, and it holds all rows in memory (about 4 kB each).
"""

import dataclasses
import shutil
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from preproc.criteo.columns import EncodeStage, SplitColumnsWriter
from preproc.criteo.dictionaries import dataset_dictionaries
from preproc.criteo.engine import (
    EngineJob,
    EngineResult,
    FileRows,
)
from preproc.criteo.input import long_line_message
from preproc.criteo.rules import (
    NUM_CATEGORICAL,
    NUM_COLUMNS,
    NUM_NUMERICAL,
    REJECT_REASONS,
    CriteoSemantics,
    order_dictionary,
    reject_reason,
    shuffle_keys,
    split_bounds,
    transform_numerical,
)
from preproc.files.errors import PreprocError
from preproc.files.input_file import MAX_LINE_BYTES, InputFile
from preproc.files.quarantine import (
    QUARANTINE_FILE,
    RejectedRow,
    check_rejected_rows,
    write_quarantine,
)
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedRows:
    """Raw values of n rows; `missing` marks empty fields, whose values are 0.

    Attributes:
        label: [n] bool.
        integers: [n, 13] int64, and their missing mask.
        categories: [n, 26] uint32, and their missing mask.
    """

    label: npt.NDArray[np.bool_]
    integers: npt.NDArray[np.int64]
    integers_missing: npt.NDArray[np.bool_]
    categories: npt.NDArray[np.uint32]
    categories_missing: npt.NDArray[np.bool_]


def iterate_lines(file: InputFile) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset, row) of every line, without LF and one CR before it.

    Raises:
        PreprocError: a line is longer than any Criteo row.
    """
    offset, rest = 0, b""
    for piece in file.blocks():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield offset, _row_of(file, offset, line)
            offset += len(line) + 1
        if len(rest) > MAX_LINE_BYTES + 1:
            raise PreprocError(long_line_message(file.path, offset))
    if rest:
        yield offset, _row_of(file, offset, rest)


def _row_of(file: InputFile, offset: int, line: bytes) -> bytes:
    row = line.removesuffix(b"\r")
    if len(row) > MAX_LINE_BYTES:
        raise PreprocError(long_line_message(file.path, offset))
    return row


def read_rows(file: InputFile) -> tuple[ParsedRows, list[RejectedRow]]:
    """Returns the values of the good rows of a file, and its bad rows."""
    good, bad = [], []
    for number, (offset, row) in enumerate(iterate_lines(file), start=1):
        reason = reject_reason(row)
        if reason is None:
            good.append(row.split(b"\t"))
        else:
            bad.append(RejectedRow(file.path.name, offset, number, reason, row))
    fields = np.array(good, dtype="S11").reshape(-1, NUM_COLUMNS)
    missing = fields == b""
    first = 1 + NUM_NUMERICAL
    integers = np.where(missing, b"0", fields)[:, 1:first].astype(np.int64)
    categories = [[int(f or b"0", 16) for f in row[first:]] for row in good]
    return ParsedRows(
        label=fields[:, 0] == b"1",
        integers=integers,
        integers_missing=missing[:, 1:first],
        categories=np.array(categories, dtype=np.uint32).reshape(-1, NUM_CATEGORICAL),
        categories_missing=missing[:, first:],
    ), bad


def build_dictionaries(
    rows: ParsedRows, counted: int, semantics: CriteoSemantics
) -> list[npt.NDArray[np.uint32]]:
    """Returns the categories of each column in id order.

    Args:
        rows: all rows.
        counted: only so many first rows are counted.
        semantics: modulus and frequency limit.
    """
    dictionaries = []
    for column in range(NUM_CATEGORICAL):
        present = ~rows.categories_missing[:counted, column]
        categories = _modulo(rows.categories[:counted, column][present], semantics)
        values, counts = np.unique(categories, return_counts=True)
        ordered = order_dictionary(values, counts.astype(np.uint64), semantics.frequency_limit)
        dictionaries.append(ordered)
    return dictionaries


def _modulo(
    categories: npt.NDArray[np.uint32], semantics: CriteoSemantics
) -> npt.NDArray[np.uint32]:
    if semantics.category_modulus is None:
        return categories
    return (categories.astype(np.uint64) % semantics.category_modulus).astype(np.uint32)


def encode(
    rows: ParsedRows, dictionaries: list[npt.NDArray[np.uint32]], semantics: CriteoSemantics
) -> ClickColumns:
    """Returns the columns of the dataset, numerical features as float32."""
    ids = []
    for column, dictionary in enumerate(dictionaries):
        id_of = {int(category): i for i, category in enumerate(dictionary, start=1)}
        categories = _modulo(rows.categories[:, column], semantics).tolist()
        found = np.array([id_of.get(c, 0) for c in categories], dtype=np.int32)
        ids.append(np.where(rows.categories_missing[:, column], 0, found).astype(np.int32))
    return ClickColumns(
        rows.label,
        transform_numerical(rows.integers, rows.integers_missing, semantics),
        tuple(ids),
    )


def _shuffle(columns: ClickColumns, train: tuple[int, int], seed: int | None) -> ClickColumns:
    """Returns all rows, those of the training split in the order of their keys."""
    if seed is None:
        return columns
    order = np.arange(len(columns))
    keys = shuffle_keys(seed, np.arange(*train, dtype=np.uint64))
    order[slice(*train)] = train[0] + np.argsort(keys, kind="stable")
    return ClickColumns(
        columns.label[order], columns.numerical[order], tuple(c[order] for c in columns.categorical)
    )


def run(engine_job: EngineJob) -> EngineResult:
    """Prepares a dataset with NumPy."""
    job = engine_job.job
    parsed, bad, files = [], [], []
    for file in engine_job.inputs:
        rows, bad_rows = read_rows(file)
        parsed.append(rows)
        bad += bad_rows
        held = len(rows.label)
        rejected = {r: sum(b.reason == r for b in bad_rows) for r in REJECT_REASONS}
        files.append(FileRows(rows=held, lines=held + len(bad_rows), rejected=rejected))
    check_rejected_rows(len(bad), sum(f.lines for f in files), job.max_bad_fraction, bad)
    rows = ParsedRows(
        *(
            np.concatenate([getattr(p, field.name) for p in parsed])
            for field in dataclasses.fields(ParsedRows)
        )
    )
    if len(rows.label) == 0:
        raise PreprocError(f"`input` {job.input}: holds no valid row")
    bounds = split_bounds([f.rows for f in files], job.semantics)
    counted = len(rows.label) if job.semantics.dictionary_days == "all" else bounds["train"][1]
    dictionaries = build_dictionaries(rows, counted, job.semantics)
    columns = encode(rows, dictionaries, job.semantics)
    columns = _shuffle(columns, bounds["train"], job.semantics.shuffle_seed)

    staging = engine_job.workspace.staging_dir("reference")
    shutil.rmtree(staging)  # this engine does not continue what was interrupted
    staging.mkdir()
    stage = EncodeStage(staging, job.format)
    cardinalities = tuple(len(d) + 1 for d in dictionaries)
    with SplitColumnsWriter(stage, FeatureSpec.criteo(cardinalities), bounds).open() as writer:
        clicks = writer.write(0, columns)
    target = dataset_dictionaries(stage.dataset)
    for column, categories in enumerate(dictionaries):
        target.save(column, categories)
    if bad:
        write_quarantine(stage.dataset / QUARANTINE_FILE, bad)
    return EngineResult(
        dataset=stage.dataset,
        engine={"name": "reference"},
        files=tuple(files),
        rows={split: last - first for split, (first, last) in bounds.items()},
        positives=clicks,
        cardinalities=cardinalities,
        columns=dataclasses.replace(stage.encoded(), is_shuffled=True),
    )
