# SPDX-License-Identifier: Apache-2.0
"""Raw text in chunks of whole lines, judged by a pattern all at once."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from preproc.files.errors import PreprocError
from preproc.files.input_file import MAX_LINE_BYTES, InputFile

BoolArray = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a file.

    Attributes:
        text: ends with LF.
        offset: of its first byte in the (unpacked) text.
        first_line: number of its first line, from 1.
        starts: [n + 1] where its lines begin, and the end.
    """

    text: bytes
    offset: int
    first_line: int
    starts: npt.NDArray[np.int32]

    @property
    def num_lines(self) -> int:
        """Lines in it."""
        return len(self.starts) - 1

    def row(self, index: int) -> bytes:
        """Returns a line without LF and one CR before it."""
        line = self.text[self.starts[index] : self.starts[index + 1] - 1]
        return line.removesuffix(b"\r")

    def matches(self, grammar: str) -> BoolArray:
        """Returns which lines follow a grammar, given as an RE2 expression of a row."""
        # A view of the text: lines are the items of a binary array, line ends included.
        buffers = [None, pa.py_buffer(self.starts), pa.py_buffer(self.text)]
        lines = pa.Array.from_buffers(pa.binary(), self.num_lines, buffers)
        return np.array(pc.match_substring_regex(lines, rf"\A{grammar}\r?\n\z"))

    def text_of(self, chosen: BoolArray) -> bytes:
        """Returns the text of the chosen lines."""
        if chosen.all():
            return self.text
        keep = np.repeat(chosen, np.diff(self.starts))
        return np.frombuffer(self.text, np.uint8)[keep].tobytes()


def read_chunks(file: InputFile, chunk_bytes: int, expected: str) -> Iterator[Chunk]:
    """Yields the text of a file, a last line without LF included.

    Args:
        file: to read.
        chunk_bytes: about so many a chunk; a line is never cut.
        expected: what the file should be, for the message.

    Raises:
        PreprocError: a line is longer than 1 MiB, or the gzip data are damaged.
    """
    parts: list[bytes] = []
    held, offset, line = 0, 0, 1
    for piece in file.pieces():
        parts.append(piece)
        held += len(piece)
        if held < chunk_bytes:
            continue
        text = b"".join(parts)
        end = text.rfind(b"\n") + 1
        if end:
            chunk = _chunk_of(file, text[:end], offset, line, expected)
            yield chunk
            offset, line = offset + end, line + chunk.num_lines
        if held - end > MAX_LINE_BYTES:
            raise _too_long(file, offset, expected)
        parts, held = [text[end:]], held - end
    if rest := b"".join(parts):
        text = rest if rest.endswith(b"\n") else rest + b"\n"
        yield _chunk_of(file, text, offset, line, expected)


def _chunk_of(file: InputFile, text: bytes, offset: int, first_line: int, expected: str) -> Chunk:
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    starts = np.zeros(len(ends) + 1, np.int32)
    starts[1:] = ends + 1
    lengths = np.diff(starts)
    if lengths.max() > MAX_LINE_BYTES + 1:
        start = int(starts[np.argmax(lengths > MAX_LINE_BYTES + 1)])
        raise _too_long(file, offset + start, expected)
    return Chunk(text, offset, first_line, starts)


def _too_long(file: InputFile, offset: int, expected: str) -> PreprocError:
    return PreprocError(
        f"{file.path}: the line at byte {offset} is longer than 1 MiB; this is not {expected}"
    )
