# SPDX-License-Identifier: Apache-2.0
"""Writes valid rows as parquet for NVTabular, with categories as numbers.

NVTabular's CSV readers silently accept some malformed rows, so it gets only rows that match the
grammar. A regular expression (RE2) checks all rows of a chunk at once; `reject_reason` checks the
rows that do not match it, one by one.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from preproc.clicks.engine import EngineJob, FileRows
from preproc.clicks.rules import ClicksSemantics, bin_categories
from preproc.clicks.schema.grammar import REJECT_REASONS, RejectReason, reject_reason
from preproc.clicks.schema.row_format import NUM_CATEGORICAL, NUM_NUMERICAL, criteo_format
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.quarantine import RejectedRow, escape_row, unescape_row
from preproc.files.text_chunks import BoolArray, Chunk, read_chunks
from preproc.files.workspace import atomic_file, read_record, write_record
from preproc.nvtabular.counts import RowFile

ROW, LABEL = "row", "label"
NUMERICAL = tuple(f"I{i + 1}" for i in range(NUM_NUMERICAL))
_CATEGORICAL = tuple(f"C{i + 1}" for i in range(NUM_CATEGORICAL))
_BINS = tuple(f"B{i + 1}" for i in range(NUM_NUMERICAL))
"""Columns of the parts: global row number, label, integers as float64, categories as int64."""

MISSING_CATEGORY = -1
"""Marks a missing category: pandas has no missing integers, and floats are slower."""

CHUNK_BYTES = 32 * 2**20
"""Bytes of text in a chunk: about 135,000 Criteo rows, 45 MiB as a dataframe."""

_HEX_DIGITS = 8


def category_columns(semantics: ClicksSemantics) -> tuple[str, ...]:
    """Returns the categorical columns of a part, bins last."""
    return _CATEGORICAL + (_BINS if semantics.bin_numerical else ())


def _surely_valid(*, unlabelled: bool) -> str:
    """Returns a pattern that matches nearly all valid rows, and only valid ones.

    Ten digits may exceed int32, so `reject_reason` checks rows with ten digits.
    """
    integers = r"\t".join([r"(?:-?[0-9]{1,9})?"] * NUM_NUMERICAL)
    label = "" if unlabelled else r"[01]\t"
    return rf"{label}{integers}(?:\t(?:[0-9a-fA-F]{{1,8}})?){{{NUM_CATEGORICAL}}}"


@dataclasses.dataclass(frozen=True, slots=True)
class ValidRows:
    """All valid and rejected rows, on disk.

    Attributes:
        key: hash of everything that the rows depend on.
        files: counts of each input file, in input order.
        parts: parquet files of valid rows, in row order.
        rejected_files: name of each input file, and the file with its rejected rows.
    """

    key: str
    files: tuple[FileRows, ...]
    parts: tuple[RowFile, ...]
    rejected_files: tuple[tuple[str, Path], ...]

    def rejected_rows(self) -> Iterator[RejectedRow]:
        """Yields the rejected rows in input order."""
        yield from _load_rejected(self.rejected_files)


class _Tally:
    """Counts of the rows read so far, over all files."""

    def __init__(self, engine_job: EngineJob) -> None:
        self._unread = list(engine_job.inputs)
        self._check_rejected_rows = engine_job.check_rejected_rows
        self.lines = self.rejected = self.rows = self.bytes = self.file_bytes = 0
        self.rejected_files: list[tuple[str, Path]] = []

    def add(self, text_bytes: int, lines: int, rows: int) -> None:
        self.bytes += text_bytes
        self.file_bytes += text_bytes
        self.lines += lines
        self.rows += rows
        self.rejected += lines - rows

    def end_file(self, file: InputFile) -> None:
        self.bytes += file.text_bytes - self.file_bytes  # an estimate if compressed
        self.file_bytes = 0
        self._unread.remove(file)

    def check(self) -> None:
        """Raises if too many rows are rejected even if all unread rows are valid."""
        if self.rejected and all(f.is_plain for f in self._unread):
            unread = sum(f.text_bytes for f in self._unread) - self.file_bytes
            most_rows = self.lines + unread // criteo_format().shortest_row_bytes
            examples = _load_rejected(self.rejected_files)
            self._check_rejected_rows(self.rejected, most_rows, examples)


def read_rows(engine_job: EngineJob) -> ValidRows:
    """Writes the valid rows of every file that is not read yet.

    Raises:
        TooManyRejectedRowsError: `max_bad_fraction` is exceeded.
        PreprocError: no row is valid, a line is too long, or compressed data are damaged.
    """
    job, inputs = engine_job.job, engine_job.inputs
    folder = engine_job.work_folder("nvtabular_rows", chunk_bytes=CHUNK_BYTES)
    tally = _Tally(engine_job)
    files, parts = [], []
    total = sum(f.text_bytes for f in inputs)
    with engine_job.reporter.stage("read", total, lambda: (tally.bytes, tally.rows)):
        for index, file in enumerate(inputs):
            tally.rejected_files.append((file.name, folder / f"{index:03d}.bad"))
            record = read_record(folder / f"{index:03d}.json")
            if record is None:
                record = _read_file(file, folder, index, job.semantics, tally)
                file.check_unchanged()
                write_record(folder / f"{index:03d}.json", record)
            else:
                tally.add(0, record["lines"], sum(record["part_rows"]))
            tally.end_file(file)
            tally.check()
            rows = sum(record["part_rows"])
            files.append(FileRows(rows=rows, lines=record["lines"], rejected=record["rejected"]))
            parts += [
                RowFile(_part_path(folder, index, number), part_rows)
                for number, part_rows in enumerate(record["part_rows"])
            ]
    if not parts:
        raise PreprocError(f"`input` {job.input}: has no valid row", setting="input")
    return ValidRows(folder.name, tuple(files), tuple(parts), tuple(tally.rejected_files))


def _part_path(folder: Path, index: int, number: int) -> Path:
    return folder / f"{index:03d}_{number:05d}.parquet"


def _read_file(
    file: InputFile, folder: Path, index: int, semantics: ClicksSemantics, tally: _Tally
) -> dict[str, Any]:
    """Writes the parts and rejected rows of a file; returns its record."""
    rejected: dict[RejectReason, int] = dict.fromkeys(REJECT_REASONS, 0)
    part_rows: list[int] = []
    lines = 0
    with (folder / f"{index:03d}.bad").open("w", encoding="ascii") as rejected_file:
        row_format = criteo_format(unlabelled=semantics.unlabelled)
        for chunk in read_chunks(file, CHUNK_BYTES, row_format.description, row_format.blank):
            valid, reasons = _validate(chunk, unlabelled=semantics.unlabelled)
            for line, reason in reasons.items():
                rejected[reason] += 1
                offset, number = chunk.offset + int(chunk.starts[line]), chunk.first_line + line
                row = escape_row(chunk.row(line))
                rejected_file.write(json.dumps([offset, number, reason, row]) + "\n")
            rejected_file.flush()
            rows = chunk.num_lines - len(reasons)
            if rows:
                table = _parse(chunk.text_of(valid), tally.rows, rows, semantics)
                write_part(_part_path(folder, index, len(part_rows)), table)
                part_rows.append(rows)
            lines += chunk.num_lines
            tally.add(len(chunk.text), chunk.num_lines, rows)
            tally.check()
        os.fsync(rejected_file.fileno())
    return {"lines": lines, "rejected": rejected, "part_rows": part_rows}


def _validate(chunk: Chunk, *, unlabelled: bool) -> tuple[BoolArray, dict[int, RejectReason]]:
    """Returns a mask of valid lines, and reasons for the others."""
    row_format = criteo_format(unlabelled=unlabelled)
    valid = chunk.matches(_surely_valid(unlabelled=unlabelled))
    reasons: dict[int, RejectReason] = {}
    for line in np.flatnonzero(~valid).tolist():
        reason = reject_reason(chunk.row(line), row_format)
        if reason is None:
            valid[line] = True
        else:
            reasons[line] = reason
    return valid, reasons


def write_part(path: Path, table: pa.Table) -> None:
    """Writes a part; a part that exists is complete."""
    with atomic_file(path) as file:
        pq.write_table(table, file, compression="snappy")


def _parse(text: bytes, first_row: int, rows: int, semantics: ClicksSemantics) -> pa.Table:
    """Parses lines of valid rows to the columns of a part."""
    types = {LABEL: pa.int8(), **dict.fromkeys(NUMERICAL, pa.int32())}
    labels = [] if semantics.unlabelled else [LABEL]
    table = pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(column_names=[*labels, *NUMERICAL, *_CATEGORICAL]),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            check_utf8=False,
            column_types=types | dict.fromkeys(_CATEGORICAL, pa.binary()),
            null_values=[""],
            strings_can_be_null=False,
        ),
    ).combine_chunks()
    assert table.num_rows == rows, "the grammar and the parser disagree about line ends"
    label = table[LABEL] if labels else pa.array(np.zeros(rows, np.int8))
    columns = {ROW: pa.array(np.arange(first_row, first_row + rows)), LABEL: label}
    # float64 holds every int32; with integers the type would depend on missing values.
    columns |= {name: table[name].cast(pa.float64()) for name in NUMERICAL}
    modulus = semantics.category_modulus
    columns |= {name: pa.array(_categories(table[name], modulus)) for name in _CATEGORICAL}
    if semantics.bin_numerical:
        columns |= {
            bins: pa.array(_bins(table[name], semantics))
            for bins, name in zip(_BINS, NUMERICAL, strict=True)
        }
    return pa.table(columns)


def _bins(column: pa.ChunkedArray, semantics: ClicksSemantics) -> npt.NDArray[np.int64]:
    """Returns the bins of a column of int32, `MISSING_CATEGORY` for nulls."""
    values = column.fill_null(0).to_numpy().astype(np.int64)
    bins = bin_categories(values, semantics).astype(np.int64)
    return np.where(column.is_null().to_numpy(), MISSING_CATEGORY, bins)


_DIGIT_VALUES = np.zeros(256, np.int64)
_DIGIT_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGIT_VALUES[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def _categories(column: pa.ChunkedArray, modulus: int | None) -> npt.NDArray[np.int64]:
    """Converts hex digits to numbers, empty texts to `MISSING_CATEGORY`."""
    texts = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    _, offsets_buffer, data_buffer = texts.buffers()
    first, count = texts.offset, len(texts)
    offsets = np.frombuffer(offsets_buffer, np.int32)[first : first + count + 1]
    data = np.frombuffer(data_buffer or b"\0", np.uint8)
    ends, lengths = offsets[1:], np.diff(offsets)
    values = np.zeros(count, np.int64)
    for digit in range(_HEX_DIGITS):  # from the right
        exists = lengths > digit
        if not exists.any():
            break
        at = np.where(exists, ends - 1 - digit, 0)
        values += np.where(exists, _DIGIT_VALUES[data[at]], 0) << (4 * digit)
    if modulus is not None:
        values %= modulus
    return np.where(lengths == 0, MISSING_CATEGORY, values)


def _load_rejected(files: Iterable[tuple[str, Path]]) -> Iterator[RejectedRow]:
    for name, path in files:
        with path.open(encoding="ascii") as lines:
            for line in lines:
                offset, number, reason, row = json.loads(line)
                yield RejectedRow(name, offset, number, reason, unescape_row(row))
