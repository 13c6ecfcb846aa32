# SPDX-License-Identifier: Apache-2.0
"""Spelling of numbers with units: `1.5 GiB` in messages, `512MiB` and `10m` in settings."""

import dataclasses
import re
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Units:
    """Names of the powers of a base, the smallest first."""

    base: int
    names: tuple[str, ...]


BINARY = Units(1024, ("B", "KiB", "MiB", "GiB", "TiB"))
DECIMAL = Units(1000, ("bytes", "kB", "MB", "GB", "TB"))


def format_bytes(count: float, units: Units = BINARY) -> str:
    """Formats a size for a message, such as `1.5 GiB`."""
    *smaller, largest = units.names
    for power, unit in enumerate(smaller):
        if abs(count) < units.base:
            return f"{count:.1f} {unit}" if power else f"{count:.0f} {unit}"
        count /= units.base
    return f"{count:.1f} {largest}"


_LETTERS = ("", "K", "M", "G", "T")

SIZE_UNITS: Mapping[str, int] = {
    **{letter: 1024**power for power, letter in enumerate(_LETTERS)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate(_LETTERS) if letter},
    **{f"{letter}B": 1000**power for power, letter in enumerate(_LETTERS)},
}
"""Unit in upper case -> factor: `G` and `GiB` are powers of 1024, `GB` of 1000."""

JVM_UNITS: Mapping[str, int] = {
    letter + suffix: 1024**power for power, letter in enumerate(_LETTERS) for suffix in ("", "B")
}
"""Unit in upper case -> factor, as Java reads it: `g` and `gb` are both powers of 1024."""

TIME_UNITS: Mapping[str, int] = {"S": 1, "M": 60, "H": 3600}
"""Unit in upper case -> seconds; a time needs one, since 10 may be meant as minutes."""

_SIZE = re.compile(r"(?P<whole>[0-9]+)(?P<rest>(?:\.[0-9]+)?\s*)(?P<unit>[A-Za-z]*)")


def parse_size(
    text: str, units: Mapping[str, int] = SIZE_UNITS, *, fractions: bool = True
) -> int | None:
    """Parses a number with a unit; returns None for any other text.

    Args:
        text: size such as `4GiB`, `512M` or `100000`.
        units: unit in upper case -> factor, to bytes or, for a time such as `10m`, to seconds.
        fractions: whether to accept `1.5GB`, and space before the unit.

    Returns:
        Bytes or seconds.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match["rest"] and not fractions) or match["unit"].upper() not in units:
        return None
    return int(float(match["whole"] + match["rest"]) * units[match["unit"].upper()])
