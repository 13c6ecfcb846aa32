# SPDX-License-Identifier: Apache-2.0
"""Rejected rows: the quarantine file, and the limit on their number."""

import csv
import dataclasses
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from preproc.files.errors import TooManyRejectedRowsError
from preproc.files.input_file import InputFile
from preproc.files.raw.encoding import MAY_BE_ENCODING, encoding_fault
from preproc.files.raw.text_files import position
from preproc.files.workspace import atomic_file
from recsys.data.manifest import QUARANTINE_FILE as QUARANTINE_FILE

EXAMPLES = 5

_SHOWN_CHARACTERS = 120


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that breaks the grammar, as written to the quarantine file.

    Attributes:
        file: name of the input file.
        byte_offset: offset of the first byte in the decompressed text, from 0.
        line_number: from 1.
        reason: one of the reasons in the row grammar.
        row: bytes without the line end.
    """

    file: str
    byte_offset: int
    line_number: int
    reason: str
    row: bytes


def escape_row(row: bytes) -> str:
    """Encodes a row as printable ASCII, without loss."""
    return row.decode("latin-1").encode("unicode_escape").decode("ascii")


def unescape_row(text: str) -> bytes:
    """Reverses `escape_row`."""
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")


def excerpt(row: bytes, characters: int) -> str:
    """Returns the beginning of an escaped row, for a message."""
    text = escape_row(row)
    return text if len(text) <= characters else text[:characters] + "..."


def write_quarantine(path: Path, rows: Iterable[RejectedRow]) -> None:
    """Writes the quarantine file from rows in input order."""
    options = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    with atomic_file(path, "w", **options) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f.name for f in dataclasses.fields(RejectedRow)])
        for bad in rows:
            writer.writerow(
                [bad.file, bad.byte_offset, bad.line_number, bad.reason, escape_row(bad.row)]
            )


def _reason_and_row(row: RejectedRow) -> str:
    return f"{row.reason}: {excerpt(row.row, _SHOWN_CHARACTERS)}"


def check_rejected_rows(
    bad: int,
    most_rows: float,
    max_bad_fraction: float,
    examples: Iterable[RejectedRow],
    files: Iterable[InputFile],
    explained: Callable[[RejectedRow], str] = _reason_and_row,
) -> None:
    """Stops the run if too many rows are rejected; shows examples.

    `most_rows` is an upper bound on the rows (valid and rejected) of the whole input `files`;
    `explained` returns what is wrong with an example.

    Raises:
        TooManyRejectedRowsError: the fraction is exceeded even if all other rows are valid.
    """
    if bad <= max_bad_fraction * most_rows:
        return
    shown = [*itertools.islice(examples, EXAMPLES)]
    by_name = {file.name: file for file in files}
    for name, file in by_name.items():
        rows = [row for row in shown if row.file == name and row.reason in MAY_BE_ENCODING]
        numbers = [row.line_number for row in rows]
        fault = encoding_fault(file, [row.row for row in rows], numbers)
        if fault and len(rows) > len(shown) / 2:
            raise TooManyRejectedRowsError(f"{bad} bad rows; {fault}")
    lines = []
    for row in shown:
        where = position(by_name[row.file], row.line_number, row.byte_offset)
        lines.append(f"  {row.file}, {where}: {explained(row)}")
    raise TooManyRejectedRowsError(
        f"{bad} bad rows, more than `max_bad_fraction` {max_bad_fraction:g} allows; the first:\n"
        + "\n".join(lines)
        + "\nRepair the input, or allow more with `max_bad_fraction`",
        setting="max_bad_fraction",
    )
