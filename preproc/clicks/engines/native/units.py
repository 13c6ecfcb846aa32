# SPDX-License-Identifier: Apache-2.0
"""Units of the native engine: byte ranges of the input files."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Iterator
from typing import Protocol, TypeVar

from preproc.clicks.engine import EngineJob
from preproc.clicks.kernel import binding
from preproc.clicks.schema.row_format import RowFormat
from preproc.files.input_file import MAX_LINE_BYTES, InputFile, line_too_long, open_fd
from preproc.files.raw.blank_end import end_of_rows, row_blocks

Counts = TypeVar("Counts", covariant=True)

_PROBE_BYTES = 2**16

STREAM_BYTES = 4 * 2**20
"""Memory of one scanner or encoder for Criteo rows: 1.5 MiB of text, a batch, output columns."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NativeSettings:
    """Sizes that change speed, memory and work files, but never the dataset.

    Attributes:
        unit_bytes: bytes of text in a unit; None chooses them by the size of the input.
        table_bytes: memory for the counts of a thread; None takes what the memory limit allows.
        merge_bytes: memory to merge a column; None takes what the memory limit allows.
    """

    unit_bytes: int | None = None
    table_bytes: int | None = None
    merge_bytes: int | None = None


def stream_bytes(row_format: RowFormat) -> int:
    """Returns the memory of one scanner or encoder.

    It depends on the schema, which may have 512 features in 1,000 columns and an encoder per split.
    """
    if row_format.is_criteo:
        return STREAM_BYTES
    groups = 1 + len(row_format.features) // 128
    return STREAM_BYTES * groups * (2 if row_format.split is None else 6)


@dataclasses.dataclass(frozen=True, slots=True)
class TextUnit:
    """The rows of a file that start in a byte range.

    Attributes:
        file: the raw file; a compressed file is one unit.
        row_format: fields of its rows.
        file_index: number of the file in the input, from 0.
        begin: first byte of the range.
        end: byte after the range.
    """

    file: InputFile
    row_format: RowFormat
    file_index: int
    begin: int
    end: int

    @property
    def name(self) -> str:
        """File name of the unit's results."""
        return f"{self.file_index:03d}_{self.begin:014d}"

    @property
    def text_bytes(self) -> int:
        """Bytes of text, estimated if the file is compressed."""
        if not self.file.is_plain:
            return self.file.text_bytes
        return self.end - self.begin


def plan_units(engine_job: EngineJob, settings: NativeSettings) -> tuple[TextUnit, ...]:
    """Divides the input into units, in row order."""
    inputs = engine_job.inputs
    total = sum(f.size for f in inputs)
    unit_bytes = settings.unit_bytes or default_unit_bytes(total)
    units = []
    for index, file in enumerate(inputs):
        row_format, step, end = engine_job.formats[index], file.size, file.size
        if file.is_plain:
            step, end = unit_bytes, end_of_rows(file, row_format.blank)
        units += [
            TextUnit(file, row_format, index, begin, min(begin + step, end))
            for begin in range(0, end, step)
        ]
    return tuple(units)


def default_unit_bytes(total: int) -> int:
    """Returns the unit size for an input of `total` bytes.

    A small input needs enough units for all cores. In a large one, longer units write fewer bytes
    of runs, because a category is written once per unit.
    """
    for limit, size in ((2**29, 2**26), (2**32, 2**27), (2**36, 2**28)):
        if total < limit:
            return size
    return 2**30


class _Reader(Protocol[Counts]):
    @property
    def is_done(self) -> bool: ...
    def feed(self, text: bytes) -> None: ...
    def feed_file(self, fd: int, begin: int, end: int) -> None: ...
    def finish(self) -> Counts: ...


def read_unit(reader: _Reader[Counts], unit: TextUnit) -> Counts:
    """Feeds a unit to a scanner or encoder; returns its counts.

    Raises:
        PreprocError: a line is too long, or the text cannot be decompressed.
    """
    try:
        if not unit.file.is_plain:
            for block in _one_ahead(row_blocks(unit.file, unit.row_format.blank)):
                reader.feed(block)
                if reader.is_done:
                    break
        else:
            with open_fd(unit.file.path) as fd:
                begin, end = line_range(fd, unit)
                reader.feed_file(fd, begin, end)
        return reader.finish()
    except binding.LineTooLongError as error:
        raise line_too_long(unit.file.path, error.offset, unit.row_format.description) from error


def _one_ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields blocks while a second thread decompresses the next one."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, blocks, b"")
        while block := ahead.result():
            ahead = pool.submit(next, blocks, b"")
            yield block


def first_byte(unit: TextUnit) -> int:
    """Returns the byte of the text where a unit begins."""
    if not unit.file.is_plain:
        return 0
    with open_fd(unit.file.path) as fd:
        return line_range(fd, unit)[0]


def line_range(fd: int, unit: TextUnit) -> tuple[int, int]:
    """Returns the first byte and the end of an uncompressed unit's lines."""
    return _line_start(fd, unit, unit.begin), _line_start(fd, unit, unit.end)


def _line_start(fd: int, unit: TextUnit, offset: int) -> int:
    """Returns the first start of a line from `offset` on, else the file's size."""
    size = unit.file.size
    if offset <= 0 or offset >= size:
        return max(0, min(offset, size))
    at = offset - 1
    while at < size:
        text = os.pread(fd, _PROBE_BYTES, at)
        if not text:
            break
        newline = text.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(text)
        if at - offset > MAX_LINE_BYTES:
            begin = _begin_of_line(fd, offset)
            raise line_too_long(unit.file.path, begin, unit.row_format.description)
    return size


def _begin_of_line(fd: int, offset: int) -> int:
    """Returns the first byte of the line at an offset."""
    while offset > 0:
        before = max(offset - _PROBE_BYTES, 0)
        newline = os.pread(fd, offset - before, before).rfind(b"\n")
        if newline >= 0:
            return before + newline + 1
        offset = before
    return 0
