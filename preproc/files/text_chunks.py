# SPDX-License-Identifier: Apache-2.0
"""Chunks of whole lines of a text file, matched against a grammar."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from preproc.files.input_file import MAX_LINE_BYTES, InputFile, line_too_long, without_mark
from preproc.files.raw.blank_end import row_blocks

BoolArray = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a file.

    Attributes:
        text: the lines, each with its LF.
        offset: offset of the first byte in the decompressed text of the file.
        first_line: number of the first line, from 1.
        starts: [lines + 1] offset of each line in `text`, and the length of `text`.
    """

    text: bytes
    offset: int
    first_line: int
    starts: npt.NDArray[np.int32]

    @property
    def num_lines(self) -> int:
        """Number of lines."""
        return len(self.starts) - 1

    def row(self, index: int) -> bytes:
        """Returns a line without its line end (LF, or CR and LF)."""
        line = self.text[self.starts[index] : self.starts[index + 1] - 1]
        return line.removesuffix(b"\r")

    def lines(self, start: int, stop: int) -> "Chunk":
        """Returns the chunk of the lines [start, stop)."""
        first, end = int(self.starts[start]), int(self.starts[stop])
        starts = self.starts[start : stop + 1] - self.starts[start]
        return Chunk(self.text[first:end], self.offset + first, self.first_line + start, starts)

    def matches(self, grammar: str) -> BoolArray:
        """Returns a mask [lines] of the rows that match an RE2 expression."""
        # A view of the text as a binary array of lines, including line ends.
        buffers = [None, pa.py_buffer(self.starts), pa.py_buffer(self.text)]
        lines = pa.Array.from_buffers(pa.binary(), self.num_lines, buffers)
        return np.array(pc.match_substring_regex(lines, rf"\A{grammar}\r?\n\z"))

    def text_of(self, mask: BoolArray) -> bytes:
        """Returns the text of the lines that a mask [lines] selects."""
        if mask.all():
            return self.text
        keep = np.repeat(mask, np.diff(self.starts))
        return np.frombuffer(self.text, np.uint8)[keep].tobytes()


def read_chunks(file: InputFile, chunk_bytes: int, expected: str, blank: bytes) -> Iterator[Chunk]:
    """Yields the lines of a file, about `chunk_bytes` at a time.

    `expected` is a noun for the error message, such as `a ratings file`. Lines of only `blank`
    bytes at the end of the file are left out.

    Raises:
        PreprocError: a line is longer than 1 MiB, or compressed data are damaged.
    """
    blocks: list[bytes] = []
    held, line = 0, 1
    offset, text_blocks = without_mark(row_blocks(file, blank))
    for block in text_blocks:
        blocks.append(block)
        held += len(block)
        if held < chunk_bytes:
            continue
        text = b"".join(blocks)
        end = text.rfind(b"\n") + 1
        if end:
            chunk = _chunk_of(file, text[:end], offset, line, expected)
            yield chunk
            offset, line = offset + end, line + chunk.num_lines
        if held - end > MAX_LINE_BYTES:
            raise line_too_long(file.path, offset, expected)
        blocks, held = [text[end:]], held - end
    if rest := b"".join(blocks):
        text = rest if rest.endswith(b"\n") else rest + b"\n"
        yield _chunk_of(file, text, offset, line, expected)


def _chunk_of(file: InputFile, text: bytes, offset: int, first_line: int, expected: str) -> Chunk:
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    starts = np.zeros(len(ends) + 1, np.int32)
    starts[1:] = ends + 1
    lengths = np.diff(starts)
    if lengths.max() > MAX_LINE_BYTES + 1:
        start = int(starts[np.argmax(lengths > MAX_LINE_BYTES + 1)])
        raise line_too_long(file.path, offset + start, expected)
    return Chunk(text, offset, first_line, starts)
