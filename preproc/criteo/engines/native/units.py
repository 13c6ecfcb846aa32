# SPDX-License-Identifier: Apache-2.0
"""Units of work of the native engine: their plan, their threads and their memory."""

import concurrent.futures
import dataclasses
from collections.abc import Iterator

from preproc.criteo.engines.native.kernel import binding
from preproc.criteo.input import align_to_line, long_line_message
from preproc.files.errors import PreprocError
from preproc.files.input_file import InputFile, open_fd

STREAM_BYTES = 4 * 2**20
"""Buffers of one scanner or encoder: 1.5 MiB of text, a batch of rows, output columns."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NativeSettings:
    """Sizes that change speed, memory and work files, never the dataset.

    Attributes:
        unit_bytes: text of a unit; None chooses by the size of the input.
        table_bytes: memory for counts per thread; None takes what the memory limit leaves.
        merge_bytes: memory to merge a column; None takes what the memory limit leaves.
    """

    unit_bytes: int | None = None
    table_bytes: int | None = None
    merge_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TextUnit:
    """A range of one file: the rows whose first byte lies in [begin, end); gzip is one unit."""

    file: InputFile
    file_index: int
    begin: int
    end: int

    @property
    def name(self) -> str:
        """File name of the unit's results."""
        return f"{self.file_index:03d}_{self.begin:014d}"

    @property
    def text_bytes(self) -> int:
        """Bytes of text: exact for a plain file, an estimate for a packed one."""
        if self.file.compression == "gzip":
            return self.file.text_bytes
        return self.end - self.begin


def plan_units(inputs: tuple[InputFile, ...], settings: NativeSettings) -> tuple[TextUnit, ...]:
    """Cuts the input into units, in row order."""
    total = sum(f.size for f in inputs)
    unit_bytes = settings.unit_bytes or default_unit_bytes(total)
    units = []
    for index, file in enumerate(inputs):
        step = file.size if file.compression == "gzip" else unit_bytes
        units += [
            TextUnit(file, index, begin, min(begin + step, file.size))
            for begin in range(0, file.size, step)
        ]
    return tuple(units)


def default_unit_bytes(total: int) -> int:
    """Returns the unit size for an input of `total` bytes.

    Small inputs need enough units for all cores. In large ones, long units meet fewer categories
    twice, and so write smaller runs.
    """
    for limit, size in ((2**32, 2**26), (2**36, 2**28)):
        if total < limit:
            return size
    return 2**30


def feed_unit(reader: binding.Scanner | binding.Encoder, unit: TextUnit) -> None:
    """Gives the whole text of a unit to a reader.

    Raises:
        PreprocError: a line does not end, or the text cannot be unpacked.
    """
    try:
        if unit.file.compression == "gzip":
            for piece in _one_ahead(unit.file.blocks()):
                reader.feed(piece)
            return
        with open_fd(unit.file.path) as fd:
            begin, end = line_range(fd, unit)
            reader.feed_file(fd, begin, end)
    except binding.LineTooLongError as error:
        raise PreprocError(long_line_message(unit.file.path, error.offset)) from error


def _one_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Unpacks the next piece in another thread while this one works on the last."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, pieces, b"")
        while piece := ahead.result():
            ahead = pool.submit(next, pieces, b"")
            yield piece


def line_range(fd: int, unit: TextUnit) -> tuple[int, int]:
    """Returns the whole lines of a unit of plain text."""
    size = unit.file.size
    return align_to_line(fd, unit.begin, size), align_to_line(fd, unit.end, size)
