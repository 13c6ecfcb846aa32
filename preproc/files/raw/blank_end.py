# SPDX-License-Identifier: Apache-2.0
"""Blank lines at the end of a file, which are not rows; a blank line before a row is one."""

from collections.abc import Iterator

from preproc.files.input_file import InputFile
from preproc.files.raw.streams import BLOCK_BYTES

LINE_ENDS = b"\r\n"
WHITESPACE = b" \t\r\n\v\f"


def row_blocks(file: InputFile, blank: bytes = LINE_ENDS) -> Iterator[bytes]:
    """Yields the text of a file without the lines of `blank` bytes at its end."""
    if file.is_table:  # a row may have only missing cells
        yield from file.blocks()
        return
    held, is_open = b"", False  # possibly the blank end; row without line end
    for block in file.blocks():
        end = _end_of_text(block, blank)
        if end == 0 and not is_open:
            held += block
            continue
        cut = block.find(b"\n", end) + 1 or len(block)
        yield held + block[:cut]
        held, is_open = block[cut:], block[cut - 1 : cut] != b"\n"


def end_of_rows(file: InputFile, blank: bytes = LINE_ENDS) -> int:
    """Returns the byte after the last row of a plain file."""
    with file.path.open("rb") as opened:
        end = file.size
        while end:
            begin = max(0, end - BLOCK_BYTES)
            opened.seek(begin)
            length = _end_of_text(opened.read(end - begin), blank)
            if length:
                opened.seek(begin + length)
                return begin + length + len(opened.readline())
            end = begin
    return 0


def _end_of_text(text: bytes, blank: bytes) -> int:
    """Returns the byte after the last one that is not blank."""
    end = len(text)
    while end and text[end - 1] in blank:
        end -= 1
    return end
