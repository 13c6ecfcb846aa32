# SPDX-License-Identifier: Apache-2.0
"""Reads JSON objects, one per line, to cells by key.

In the kernel, json_rows.h splits them to the same cells.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from preproc.files.errors import PreprocError

MAX_DEPTH = 100
_NO_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\[\]{}"]')
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
_PYTHON_DICTIONARY = re.compile(rb"\s*\{\s*u?'")


class JsonError(ValueError):
    """A line is not a JSON object, or has a value that cannot be a cell."""


class _Number(str):
    """The text of a number or NaN."""


def is_object(line: bytes) -> bool:
    """Returns True for a line that begins like a JSON object or a Python dictionary."""
    return line.lstrip().startswith(b"{")


def read_object(line: bytes) -> list[tuple[str, object]]:
    """Returns the keys and values of a line; numbers are texts.

    NaN and Infinity are read as Python writes them.

    Raises:
        JsonError: the line is not a JSON object.
    """
    try:
        if line.count(b"[") + line.count(b"{") > MAX_DEPTH < _depth(line):
            raise JsonError(f"nested deeper than {MAX_DEPTH} levels")
        pairs = json.loads(
            line.decode(),
            object_pairs_hook=tuple,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Number,
        )
    except ValueError as error:
        if _PYTHON_DICTIONARY.match(line):
            raise JsonError(
                "a Python dictionary, not JSON; get the file as JSON, or convert it"
            ) from error
        raise JsonError(f"not JSON ({error})") from error
    if not isinstance(pairs, tuple):
        raise JsonError("not a JSON object")
    return list(pairs)


def keys_of(path: Path, lines: Iterable[bytes]) -> dict[str, object]:
    """Returns the keys of the first lines, each with a value that is not null if there is one.

    Raises:
        PreprocError: no line is an object with a key.
    """
    keys: dict[str, object] = {}
    faults = []
    for line in lines:
        try:
            pairs = read_object(line)
        except JsonError as error:
            faults.append(str(error))
            continue
        for key, value in pairs:
            if keys.get(key) is None:
                keys[key] = value
    if not keys:
        raise PreprocError(
            f"{path}, line 1: {', '.join(faults[:1]) or 'no key'}; write one JSON object per line",
            path=path,
            line=1,
        )
    return keys


def cells_of_object(line: bytes, separators: Mapping[str, str | None]) -> list[bytes]:
    """Returns the cells for the keys of `separators`; empty for keys that the line lacks.

    A cell is a text, or the text of another value (without the point if it is a whole number); null
    and NaN are empty.

    Args:
        line: without its line end.
        separators: for each key, the separator to put between elements of a list. If it is empty,
            lists are refused; if None, lists and objects become empty cells.

    Raises:
        JsonError: the line is not an object, a key occurs twice, or a value cannot be a cell.
    """
    cells = dict.fromkeys(separators, b"")
    pairs = [(key, value) for key, value in read_object(line) if key in cells]
    if len(pairs) > len({key for key, _ in pairs}):
        seen = Counter(key for key, _ in pairs)
        raise JsonError(f"duplicate key {seen.most_common(1)[0][0]}")
    for key, value in pairs:
        separator = separators[key]
        if isinstance(value, list) and separator:
            elements = [_cell(key, element) for element in value]
            if any(separator.encode("latin-1") in element for element in elements):
                raise JsonError(f"an element of {key} contains the separator {separator!r}")
            cells[key] = separator.encode("latin-1").join(elements)
        elif separator is not None or not isinstance(value, (list, tuple)):
            cells[key] = _cell(key, value)
    return list(cells.values())


def _cell(key: str, value: object) -> bytes:
    if value is None or (isinstance(value, _Number) and value == "NaN"):
        return b""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, _Number):
        whole = _WHOLE.fullmatch(value)
        number = whole[1] if whole else str(value)
        return b"0" if whole and number == "-0" else number.encode()
    if not isinstance(value, str):
        raise JsonError(f"{key} is {'an object' if isinstance(value, tuple) else 'a list'}")
    return value.encode(errors="surrogatepass")


def _depth(row: bytes) -> int:
    brackets = _NO_BRACKETS.sub(b"", row)
    return max(itertools.accumulate(1 if b in b"[{" else -1 for b in brackets), default=0)
