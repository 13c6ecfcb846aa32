# SPDX-License-Identifier: Apache-2.0
"""Objects of JSON, one a line, as cells by their keys.

The kernel splits them by json_rows.h, to the same cells.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from preproc.files.errors import PreprocError

MAX_DEPTH = 100
_NO_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\[\]{}"]')
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
_PYTHON_DICTIONARY = re.compile(rb"\s*\{\s*u?'")


class JsonError(ValueError):
    """A line that is no object of JSON, or has a value that is no cell."""


class _Number(str):
    """A number, or NaN, as it is written."""


def is_object(line: bytes) -> bool:
    """Returns True for a line that begins as an object does, of JSON or of Python."""
    return line.lstrip().startswith(b"{")


def read_object(line: bytes) -> list[tuple[str, object]]:
    """Returns keys and values of a line; numbers are texts.

    Raises:
        JsonError: it is no object of JSON; NaN and Infinity are read as Python writes them.
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
                "a Python dictionary, not JSON; get the JSON file, or convert it"
            ) from error
        raise JsonError(f"not JSON ({error})") from error
    if not isinstance(pairs, tuple):
        raise JsonError("not a JSON object")
    return list(pairs)


def keys_of(path: Path, lines: Iterable[bytes]) -> dict[str, object]:
    """Returns the keys of the first lines, each with a value that is not null if it has one.

    Raises:
        PreprocError: none is an object with a key.
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
            f"{path}, line 1: {', '.join(faults[:1]) or 'no key'}; JSON has an object in each line",
            path=path,
            line=1,
        )
    return keys


def cells_of_object(line: bytes, separators: Mapping[str, str | None]) -> list[bytes]:
    """Returns the cells of the keys of `separators`, empty where there is none.

    A cell is a text, or another value as it is written, a whole number without a point; null and
    NaN are empty.

    Args:
        line: without its end.
        separators: of each key what stands between the elements of a list, empty where none is
            read; None where nothing is.

    Raises:
        JsonError: the line is no object, a key occurs twice, or a value is no cell.
    """
    cells = dict.fromkeys(separators, b"")
    pairs = [(key, value) for key, value in read_object(line) if key in cells]
    if len(pairs) > len({key for key, _ in pairs}):
        raise JsonError(f"one of {[key for key, _ in pairs]} occurs twice")
    for key, value in pairs:
        separator = separators[key]
        if isinstance(value, list) and separator:
            elements = [_cell(key, element) for element in value]
            if any(separator.encode("latin-1") in element for element in elements):
                raise JsonError(f"an element of {key} holds {separator!r}, which stands between")
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
