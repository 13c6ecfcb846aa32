# SPDX-License-Identifier: Apache-2.0
"""Reads ratings files with the kernel, or with the Python reference."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from preproc.clicks.kernel.rating_rows import RatingReader, RatingRows
from preproc.clicks.kernel.shared_library import LineTooLongError, is_built
from preproc.clicks.schema.rating_fields import Rating, order_key, read_rating
from preproc.clicks.schema.row_format import RowFormat
from preproc.files.input_file import MAX_LINE_BYTES, InputFile, line_too_long, without_mark
from preproc.files.raw.blank_end import WHITESPACE, row_blocks
from preproc.files.text_chunks import BoolArray
from preproc.ratings.format import RatingsFormat
from recsys.ahead import call_ahead
from recsys.data.arrow_columns import column_of

RATINGS_FILE = "a ratings file"
"""Noun for messages about files that are something else."""

_IDS = pa.dictionary(pa.int32(), pa.string())
_MOST_THREADS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Interactions:
    """The valid rows of a chunk, in file order.

    Attributes:
        users: [rows] raw ids, dictionary-encoded.
        items: [rows] raw ids, dictionary-encoded.
        ratings: [rows]; None if the format has no ratings.
        timestamps: [rows]; None if the format has no timestamps.
    """

    users: pa.ChunkedArray
    items: pa.ChunkedArray
    ratings: npt.NDArray[np.float64] | None
    timestamps: npt.NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.users)

    def filter(self, mask: BoolArray) -> "Interactions":
        """Returns the rows that a mask [rows] selects."""
        users, items = (column.filter(column_of(mask)) for column in (self.users, self.items))
        ratings = None if self.ratings is None else self.ratings[mask]
        times = None if self.timestamps is None else self.timestamps[mask]
        return Interactions(users, items, ratings, times)


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows of consecutive lines of a file.

    Attributes:
        rows: the valid rows.
        rejected: byte offset, line number and bytes of each rejected row.
        lines: number of the first line, and of the line after the last.
        text_bytes: size of the lines in bytes.
    """

    rows: Interactions
    rejected: list[tuple[int, int, bytes]]
    lines: tuple[int, int]
    text_bytes: int


class _Reader(Protocol):
    def feed(self, text: bytes) -> None: ...
    def finish(self) -> None: ...
    def take(self) -> RatingRows: ...
    def close(self) -> None: ...


def pieces(file: InputFile, layout: RatingsFormat, chunk_bytes: int) -> Iterator[Piece]:
    """Yields all rows of a file, about `chunk_bytes` of text at a time.

    Threads read texts ahead: as many as pyarrow has, up to what one thread can feed.

    Raises:
        PreprocError: a line is longer than 1 MiB, or compressed data are damaged.
    """
    threads = min(pa.cpu_count(), _MOST_THREADS)
    calls = (
        functools.partial(_parse, layout, offset, text)
        for offset, text in _texts(row_blocks(file, WHITESPACE), chunk_bytes)
    )
    line = 1
    try:
        with contextlib.closing(call_ahead(calls, threads, threads)) as parsed:
            for size, read in parsed:
                users, items = (pa.chunked_array([ids], _IDS) for ids in (read.users, read.items))
                ratings = read.ratings if "rating" in layout.columns else None
                times = read.times if layout.has_timestamps else None
                rows = Interactions(users, items, ratings, times)
                rejected = [(offset, line - 1 + at, row) for offset, at, row in read.rejected]
                yield Piece(rows, rejected, (line, line + read.lines), size)
                line += read.lines
    except LineTooLongError as error:
        raise line_too_long(file.path, error.offset, RATINGS_FILE) from error


def _texts(blocks: Iterator[bytes], chunk_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file, about `chunk_bytes` at a time, and the offset of each text."""
    offset, held, size = 0, list[bytes](), 0
    for block in blocks:
        held.append(block)
        size += len(block)
        end = block.rfind(b"\n") + 1
        if size >= chunk_bytes and end:
            held[-1], rest = block[:end], block[end:]
            yield offset, b"".join(held)
            offset += size - len(rest)
            held, size = [rest], len(rest)
        elif size > chunk_bytes + len(block) + MAX_LINE_BYTES:
            break  # without a line end for so long: the reader refuses this line
    yield offset, b"".join(held)


def _parse(layout: RatingsFormat, offset: int, text: bytes) -> tuple[int, RatingRows]:
    """Returns the bytes of a text, and its rows."""
    make = RatingReader if is_built() else ReferenceReader
    reader: _Reader = make(layout.rows, offset)
    with contextlib.closing(reader):
        reader.feed(text)
        reader.finish()
        return len(text), reader.take()


class ReferenceReader:
    """Reads ratings in Python if the kernel is not built; see `RatingReader`."""

    def __init__(self, row_format: RowFormat, offset: int = 0) -> None:
        self._format = row_format
        self._rest, self._offset, self._line = b"", offset, 0
        self._begins, self._skips_line = offset == 0, row_format.has_header and offset == 0
        self._rows: list[Rating] = []
        self._rejected: list[tuple[int, int, bytes]] = []

    def feed(self, text: bytes) -> None:
        """Reads a block of text, which may end inside a row."""
        text = self._rest + text
        if self._begins and b"\n" in text:
            self._offset, blocks = without_mark(iter([text]))
            text, self._begins = b"".join(blocks), False
        *lines, self._rest = text.split(b"\n")
        for line in lines:
            self._read(line)
            self._offset += len(line) + 1
        if len(self._rest) > MAX_LINE_BYTES + 1:
            raise LineTooLongError("", self._offset)

    def _read(self, line: bytes) -> None:
        self._line += 1
        row = line.removesuffix(b"\r")
        if len(row) > MAX_LINE_BYTES:
            raise LineTooLongError("", self._offset)
        if self._skips_line:
            self._skips_line = False
            return
        read = read_rating(row, self._format)
        if isinstance(read, Rating):
            self._rows.append(read)
        else:
            self._rejected.append((self._offset, self._line, row))

    def finish(self) -> None:
        """Ends the text."""
        if self._rest:
            self.feed(b"\n")

    def take(self) -> RatingRows:
        """Returns what was read since the last call."""
        rows, rejected = self._rows, self._rejected
        self._rows, self._rejected = [], []
        keys = (order_key(t) if isinstance(t := row.time, float) else t or 0 for row in rows)
        return RatingRows(
            pa.array([row.user for row in rows], pa.string()).dictionary_encode(),
            pa.array([row.item for row in rows], pa.string()).dictionary_encode(),
            np.array([row.rating or 0.0 for row in rows], np.float64),
            np.array([*keys], np.int64),
            rejected,
            self._line,
        )

    def close(self) -> None:
        """Does nothing; the kernel's reader has memory to free."""


def times_of_keys(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Converts timestamps of a format with `real_times` back to floats."""
    return np.where(keys < 0, keys ^ np.iinfo(np.int64).max, keys).view(np.float64)


def keys_of_times(times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Inverts `times_of_keys`."""
    keys = times.view(np.int64)
    return np.where(keys < 0, keys ^ np.iinfo(np.int64).max, keys)
