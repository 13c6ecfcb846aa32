# SPDX-License-Identifier: Apache-2.0
"""Tells texts of Windows-1252 from those of UTF-8."""

import shlex
from collections.abc import Sequence
from pathlib import PurePath

_READERS = {".gz": "zcat", ".zst": "zstdcat", ".bz2": "bzcat", ".xz": "xzcat"}
_DAMAGED = 0.001
"""Fraction of the lines that may be damaged in a file of UTF-8."""
_LETTERS = 20
"""Characters before and after a byte that a message shows."""


def is_other_encoding(line: bytes) -> bool:
    """Returns True if a line is not UTF-8 and can be read as Windows-1252."""
    try:
        line.decode()
    except UnicodeDecodeError:
        try:
            return all(each.isprintable() or each.isspace() for each in line.decode("cp1252"))
        except UnicodeDecodeError:
            return False
    return False


def first_of_other_encoding(lines: Sequence[bytes]) -> int | None:
    """Returns the number of the first line that is Windows-1252 in a file of it, from 0.

    A file is one if most of its lines beyond ASCII are, and some of all; a few may be damaged.
    """
    beyond_ascii = [number for number, line in enumerate(lines) if not line.isascii()]
    others = [number for number in beyond_ascii if is_other_encoding(lines[number])]
    least = max(1, len(beyond_ascii) / 2, _DAMAGED * len(lines))
    return others[0] if len(others) > least else None


def of_other_encoding(name: str, line: bytes, number: int | None) -> str:
    """Returns the message about a file of which a line is not UTF-8, and the remedy.

    Args:
        name: of the file, as a user can write it in a command.
        line: one for which `is_other_encoding` is true.
        number: of the line, from 1; None if it is not known.
    """
    try:
        line.decode()
        raise AssertionError("the line is UTF-8")
    except UnicodeDecodeError as error:
        at = error.start
    around = line[max(at - _LETTERS, 0) : at + _LETTERS].decode("cp1252")
    where = "" if number is None else f", line {number}"
    path = PurePath(name)
    reader = _READERS.get(path.suffix)
    source = f"{reader} {shlex.quote(name)} | iconv" if reader else "iconv"
    given = "" if reader else f" {shlex.quote(name)}"
    made = shlex.quote(f"{path.name.partition('.')[0]}.utf8.csv")
    return (
        f"{name}{where}: byte {line[at]:#04x} is not UTF-8; as Windows-1252 the text there is "
        f"{around!r}. Convert the file, if it is of that encoding, and give the new one:\n"
        f"  {source} -f WINDOWS-1252 -t UTF-8{given} > {made}"
    )
