# SPDX-License-Identifier: Apache-2.0
"""Rows that break the grammar: what is kept of them, and when they are too many."""

import csv
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from preproc.files.errors import TooManyBadRowsError
from preproc.files.workspace import atomic_file

QUARANTINE_FILE = "quarantine.csv"
EXAMPLES = 5

_SHOWN_CHARACTERS = 120


@dataclasses.dataclass(frozen=True, slots=True)
class BadRow:
    """A row left out of the dataset.

    Attributes:
        file: name of its file.
        byte_offset: of its first byte, in the (unpacked) text.
        line_number: from 1.
        reason: a name that the row grammar of its format knows.
        row: its bytes without the line end.
    """

    file: str
    byte_offset: int
    line_number: int
    reason: str
    row: bytes


def escape_row(row: bytes) -> str:
    """Returns printable ASCII that `unescape_row` turns back into the same bytes."""
    return row.decode("latin-1").encode("unicode_escape").decode("ascii")


def unescape_row(text: str) -> bytes:
    """Returns the bytes of an escaped row."""
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")


def write_quarantine(path: Path, rows: Iterable[BadRow]) -> None:
    """Writes the quarantine file, in input order."""
    with atomic_file(path) as fd, os.fdopen(os.dup(fd), "w", encoding="ascii", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f.name for f in dataclasses.fields(BadRow)])
        for bad in rows:
            writer.writerow(
                [bad.file, bad.byte_offset, bad.line_number, bad.reason, escape_row(bad.row)]
            )


def check_bad_rows(
    bad: int, most_rows: float, max_bad_fraction: float, examples: Iterable[BadRow]
) -> None:
    """Stops the run when too many rows are bad.

    Args:
        bad: bad rows so far.
        most_rows: rows, good and bad, that the input can have at most.
        max_bad_fraction: share of bad rows that is allowed.
        examples: the bad rows in input order; the first five are shown.

    Raises:
        TooManyBadRowsError: the share is exceeded, whatever the rest holds.
    """
    if bad <= max_bad_fraction * most_rows:
        return
    lines = []
    for row, _ in zip(examples, range(EXAMPLES), strict=False):
        text = escape_row(row.row)
        if len(text) > _SHOWN_CHARACTERS:
            text = text[:_SHOWN_CHARACTERS] + "..."
        lines.append(
            f"  {row.file}, line {row.line_number}, byte {row.byte_offset}: {row.reason}: {text}"
        )
    raise TooManyBadRowsError(
        f"{bad} bad rows, more than `max_bad_fraction` {max_bad_fraction:g} allows; the first:\n"
        + "\n".join(lines)
        + "\nRepair the input, or allow more with `max_bad_fraction`"
    )
