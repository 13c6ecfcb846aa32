# SPDX-License-Identifier: Apache-2.0
"""Distinguishes Windows-1252 from UTF-8."""

import shlex
from collections.abc import Sequence

from preproc.files.input_file import InputFile

_READERS = {".gz": "zcat", ".zst": "zstdcat", ".bz2": "bzcat", ".xz": "xzcat"}
_DAMAGED = 0.001
"""Largest fraction of lines that may be damaged in a UTF-8 file."""
MAY_BE_ENCODING = ("encoding", "json")
"""Reasons to reject a row that may come from another encoding."""
_LETTERS = 20
"""Characters before and after a byte that a message shows."""


def encoding_fault(file: InputFile, lines: Sequence[bytes], numbers: Sequence[int] = ()) -> str:
    """Returns what is wrong with a Windows-1252 file and the remedy; empty for other files.

    A file is Windows-1252 if most of its lines beyond ASCII are, and more lines than may be damaged
    in UTF-8. Tables never are.

    Args:
        file: the input file.
        lines: some of its lines.
        numbers: numbers of these lines, from 1; empty if unknown.
    """
    if file.is_table:
        return ""
    beyond_ascii = [number for number, line in enumerate(lines) if not line.isascii()]
    found = {number: _first_byte(lines[number]) for number in beyond_ascii}
    others = {number: at for number, at in found.items() if at is not None}
    if len(others) <= max(1, len(beyond_ascii) / 2, _DAMAGED * len(lines)):
        return ""
    number, at = next(iter(others.items()))
    line, where = lines[number], f", line {numbers[number]}" if numbers else ""
    around = line[max(at - _LETTERS, 0) : at + _LETTERS].decode("cp1252")
    path = shlex.quote(str(file.path))
    reader = _READERS.get(file.path.suffix)
    source = f"{reader} {path} | iconv" if reader else "iconv"
    given = "" if reader else f" {path}"
    made = shlex.quote(f"{file.path.name.partition('.')[0]}.utf8.csv")
    return (
        f"{file.path}{where}: byte {line[at]:#04x} is not UTF-8; read as Windows-1252, the text is "
        f"{around!r}. If the file has that encoding, convert it and give the new file:\n"
        f"  {source} -f WINDOWS-1252 -t UTF-8{given} > {made}"
    )


def _first_byte(line: bytes) -> int | None:
    """Returns where a line stops being UTF-8; None unless it can be read as Windows-1252."""
    try:
        line.decode()
        return None
    except UnicodeDecodeError as error:
        at = error.start
    try:
        text = line.decode("cp1252")
    except UnicodeDecodeError:
        return None
    return at if all(each.isprintable() or each.isspace() for each in text) else None
