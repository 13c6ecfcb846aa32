# SPDX-License-Identifier: Apache-2.0
"""Raw text to parquet for NVTabular: rows judged by the grammar first, categories as numbers.

NVTabular's own CSV reader would let malformed rows through (each dataframe library accepts
something wrong in silence), so it gets only rows that the grammar accepted. The grammar runs over
whole chunks as one RE2 expression; the rows that it does not take are judged one by one by
`reject_reason`.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from preproc.criteo.engine import EngineJob, FileRows
from preproc.criteo.rules import (
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    REJECT_REASONS,
    SHORTEST_ROW_BYTES,
    RejectReason,
    reject_reason,
)
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile
from preproc.files.quarantine import RejectedRow, check_rejected_rows, escape_row, unescape_row
from preproc.files.row_files import RowFile
from preproc.files.text_chunks import BoolArray, Chunk, read_chunks
from preproc.files.workspace import atomic_file, read_record, settings_key, write_record

ROW, LABEL = "row", "label"
NUMERICAL = tuple(f"I{i + 1}" for i in range(NUM_NUMERICAL))
CATEGORICAL = tuple(f"C{i + 1}" for i in range(NUM_CATEGORICAL))
"""Columns of the parts: global row number, label, integers as float64, categories as int64."""

MISSING_CATEGORY = -1
"""Outside the unsigned 32-bit categories: pandas has no missing integers, and floats are slower."""

CHUNK_BYTES = 32 * 2**20
"""Text of a part: about 135,000 Criteo rows, 45 MiB as a dataframe."""

CRITEO_LOG = "a Criteo log (40 tab-separated fields per line)"

_FORMAT_VERSION = 1
_HEX_DIGITS = 8

# Ten digits may exceed int32, so rows that have them go through `reject_reason`.
_SURELY_GOOD = (
    rf"[01](?:\t(?:-?[0-9]{{1,9}})?){{{NUM_NUMERICAL}}}"
    rf"(?:\t(?:[0-9a-fA-F]{{1,8}})?){{{NUM_CATEGORICAL}}}"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ValidRows:
    """All valid rows, on disk.

    Attributes:
        key: changes when they do.
        files: per input file, in order.
        parts: in row order.
        bad_files: per input file, its name and where its bad rows are.
    """

    key: str
    files: tuple[FileRows, ...]
    parts: tuple[RowFile, ...]
    bad_files: tuple[tuple[str, Path], ...]

    def bad_rows(self) -> Iterator[RejectedRow]:
        """Yields the bad rows in input order."""
        yield from _load_bad_rows(self.bad_files)


class _Tally:
    """What was read so far, of all files."""

    def __init__(self, engine_job: EngineJob) -> None:
        self._unread = list(engine_job.inputs)
        self._max_bad_fraction = engine_job.job.max_bad_fraction
        self.lines = self.bad = self.rows = self.bytes = self.file_bytes = 0
        self.bad_files: list[tuple[str, Path]] = []

    def add(self, text_bytes: int, lines: int, rows: int) -> None:
        self.bytes += text_bytes
        self.file_bytes += text_bytes
        self.lines += lines
        self.rows += rows
        self.bad += lines - rows

    def end_file(self, file: InputFile) -> None:
        self.bytes += file.text_bytes - self.file_bytes  # for packed text it was an estimate
        self.file_bytes = 0
        self._unread.remove(file)

    def check(self) -> None:
        """Stops as soon as the text still unread, all good rows, could not save the run."""
        if self.bad and all(f.compression == "none" for f in self._unread):
            unread = sum(f.text_bytes for f in self._unread) - self.file_bytes
            most_rows = self.lines + unread // SHORTEST_ROW_BYTES
            check_rejected_rows(
                self.bad, most_rows, self._max_bad_fraction, _load_bad_rows(self.bad_files)
            )


def read_rows(engine_job: EngineJob) -> ValidRows:
    """Writes the valid rows of every file that was not read before.

    Raises:
        TooManyRejectedRowsError: --max_bad_fraction is exceeded.
        PreprocError: no row is valid, a line does not end, or gzip data are damaged.
    """
    job, inputs = engine_job.job, engine_job.inputs
    key = settings_key(
        {
            "version": [_FORMAT_VERSION, CHUNK_BYTES],
            "modulus": job.semantics.category_modulus,
            "files": [f.identity for f in inputs],
        }
    )
    folder = engine_job.workspace.unit_dir("nvtabular_rows", key)
    tally = _Tally(engine_job)
    files, parts = [], []
    total = sum(f.text_bytes for f in inputs)
    with engine_job.reporter.stage("read", total, lambda: (tally.bytes, tally.rows)):
        for index, file in enumerate(inputs):
            tally.bad_files.append((file.path.name, folder / f"{index:03d}.bad"))
            record = read_record(folder / f"{index:03d}.json")
            if record is None:
                record = _read_file(file, folder, index, job.semantics.category_modulus, tally)
                write_record(folder / f"{index:03d}.json", record)
            else:
                tally.add(0, record["lines"], sum(record["part_rows"]))
            tally.end_file(file)
            tally.check()
            rows = sum(record["part_rows"])
            files.append(FileRows(rows=rows, lines=record["lines"], rejected=record["rejected"]))
            parts += [
                RowFile(_part_path(folder, index, part), part_rows)
                for part, part_rows in enumerate(record["part_rows"])
            ]
    if not parts:
        raise PreprocError(f"`input` {job.input}: holds no valid row")
    return ValidRows(key, tuple(files), tuple(parts), tuple(tally.bad_files))


def _part_path(folder: Path, index: int, part: int) -> Path:
    return folder / f"{index:03d}_{part:05d}.parquet"


def _read_file(
    file: InputFile, folder: Path, index: int, modulus: int | None, tally: _Tally
) -> dict[str, Any]:
    """Writes the parts and the bad rows of one file; returns its record."""
    rejected: dict[RejectReason, int] = dict.fromkeys(REJECT_REASONS, 0)
    part_rows: list[int] = []
    lines = 0
    with (folder / f"{index:03d}.bad").open("w", encoding="ascii") as bad_file:
        for chunk in read_chunks(file, CHUNK_BYTES, CRITEO_LOG):
            good, reasons = _judge(chunk)
            for line, reason in reasons.items():
                rejected[reason] += 1
                place = (chunk.offset + int(chunk.starts[line]), chunk.first_line + line)
                row = escape_row(chunk.row(line))
                bad_file.write(json.dumps([*place, reason, row]) + "\n")
            bad_file.flush()
            rows = chunk.num_lines - len(reasons)
            if rows:
                table = _parse(chunk.text_of(good), tally.rows, rows, modulus)
                write_part(_part_path(folder, index, len(part_rows)), table)
                part_rows.append(rows)
            lines += chunk.num_lines
            tally.add(len(chunk.text), chunk.num_lines, rows)
            tally.check()
        os.fsync(bad_file.fileno())
    return {"lines": lines, "rejected": rejected, "part_rows": part_rows}


def _judge(chunk: Chunk) -> tuple[BoolArray, dict[int, RejectReason]]:
    """Returns which lines are good, and why each other is refused."""
    good = chunk.matches(_SURELY_GOOD)
    reasons: dict[int, RejectReason] = {}
    for line in np.flatnonzero(~good).tolist():
        reason = reject_reason(chunk.row(line))
        if reason is None:
            good[line] = True
        else:
            reasons[line] = reason
    return good, reasons


def write_part(path: Path, table: pa.Table) -> None:
    """Writes one part, by rename."""
    with atomic_file(path) as fd, os.fdopen(os.dup(fd), "wb") as file:
        pq.write_table(table, file, compression="snappy")


def _parse(text: bytes, first_row: int, rows: int, modulus: int | None) -> pa.Table:
    """Returns the columns of a part from rows that the grammar accepted."""
    types = {LABEL: pa.int8(), **dict.fromkeys(NUMERICAL, pa.int32())}
    table = pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(column_names=[LABEL, *NUMERICAL, *CATEGORICAL]),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            check_utf8=False,
            column_types=types | dict.fromkeys(CATEGORICAL, pa.binary()),
            null_values=[""],
            strings_can_be_null=False,
        ),
    ).combine_chunks()
    assert table.num_rows == rows, "the grammar and the parser disagree about line ends"
    columns = {ROW: pa.array(np.arange(first_row, first_row + rows)), LABEL: table[LABEL]}
    # float64 holds every int32; integers with missing values would have another type per part.
    columns |= {name: table[name].cast(pa.float64()) for name in NUMERICAL}
    columns |= {name: pa.array(_categories(table[name], modulus)) for name in CATEGORICAL}
    return pa.table(columns)


_DIGIT_VALUES = np.zeros(256, np.int64)
_DIGIT_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGIT_VALUES[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def _categories(column: pa.ChunkedArray, modulus: int | None) -> npt.NDArray[np.int64]:
    """Returns hex texts as numbers, `MISSING_CATEGORY` for empty ones."""
    texts = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    _, offsets_buffer, data_buffer = texts.buffers()
    first, count = texts.offset, len(texts)
    offsets = np.frombuffer(offsets_buffer, np.int32)[first : first + count + 1]
    data = np.frombuffer(data_buffer or b"\0", np.uint8)
    ends, lengths = offsets[1:], np.diff(offsets)
    values = np.zeros(count, np.int64)
    for digit in range(_HEX_DIGITS):  # from the right
        there = lengths > digit
        if not there.any():
            break
        at = np.where(there, ends - 1 - digit, 0)
        values += np.where(there, _DIGIT_VALUES[data[at]], 0) << (4 * digit)
    if modulus is not None:
        values %= modulus
    return np.where(lengths == 0, MISSING_CATEGORY, values)


def _load_bad_rows(
    bad_files: tuple[tuple[str, Path], ...] | list[tuple[str, Path]],
) -> Iterator[RejectedRow]:
    for name, path in bad_files:
        with path.open(encoding="ascii") as lines:
            for line in lines:
                offset, number, reason, row = json.loads(line)
                yield RejectedRow(name, offset, number, reason, unescape_row(row))
