# SPDX-License-Identifier: Apache-2.0
"""Reads a ratings file, and refuses or quarantines malformed rows."""

import dataclasses
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import numpy as np

from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from preproc.files.input_file import InputFile
from preproc.files.progress import ProgressReporter
from preproc.files.quarantine import RejectedRow, check_rejected_rows
from preproc.files.raw.encoding import MAY_BE_ENCODING, encoding_fault
from preproc.files.raw.text_files import position
from preproc.ratings.format import (
    IGNORED,
    ITEM,
    RATING,
    TIMESTAMP,
    USER,
    Fault,
    RatingsFormat,
)
from preproc.ratings.input import first_lines, of_file
from preproc.ratings.job import RatingsJob
from preproc.ratings.parse import Interactions, Piece, pieces, times_of_keys

CHUNK_BYTES = 16 * 2**20
MAX_QUARANTINED_ROWS = 1_000_000
_LOOKED_AT = 10_000
"""Lines of a chunk to examine for another encoding."""


Sink = Callable[[Interactions], None]
"""Receives the rows of a file as they are read, except those below `min_rating`."""


@dataclasses.dataclass(slots=True)
class ReadRows:
    """Rows of files that were read.

    Attributes:
        valid_rows: number of valid rows of each file, including rows of unknown items.
        num_rows: number of valid rows; with `dictionaries`, only those of known items.
        below_min_rating: number of those rows that were dropped.
        rejected: malformed rows.
        times: first and last time, in seconds since 1970; empty without times.
    """

    valid_rows: list[int]
    num_rows: int = 0
    below_min_rating: int = 0
    times: tuple[float, ...] = ()
    rejected: list[RejectedRow] = dataclasses.field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Rows that reach `min_rating`."""
        return self.num_rows - self.below_min_rating


def read_ratings(
    job: RatingsJob,
    files: tuple[InputFile, ...],
    layout: RatingsFormat,
    reporter: ProgressReporter,
    chunk_bytes: int,
    add: Sink,
    keep: Callable[[Interactions], Interactions] = lambda rows: rows,
) -> ReadRows:
    """Reads all files completely, and passes rows that reach `min_rating` to a sink.

    Rows that `keep` drops are not counted in `num_rows`.

    Raises:
        PreprocError: a file cannot be read, or no row is valid.
        TooManyRejectedRowsError: more rows are rejected than the settings allow.
    """
    read, done = ReadRows([0] * len(files)), 0
    layouts = [of_file(layout, file) for file in files]
    parts = (
        (number, piece)
        for number, file in enumerate(files)
        for piece in pieces(file, layouts[number], chunk_bytes)
    )
    text_bytes = sum(file.text_bytes for file in files)
    with reporter.stage("read", text_bytes, lambda: (done, read.num_rows)):
        for number, piece in parts:
            rows = piece.rows
            if piece.rejected:
                _reject(job, files[number], layouts[number], piece, read.rejected)
            read.valid_rows[number] += len(rows)
            if rows.timestamps is not None and len(rows):
                ends = np.array([rows.timestamps.min(), rows.timestamps.max()])
                seconds = times_of_keys(ends) if layout.real_times else ends
                both = (*read.times, *seconds.tolist())
                read.times = min(both), max(both)
            rows = keep(rows)
            read.num_rows += len(rows)
            if rows.ratings is not None and job.min_rating > 0:
                enough = rows.ratings >= job.min_rating
                read.below_min_rating += len(rows) - int(enough.sum())
                rows = rows.filter(enough)
            if len(rows):
                add(rows)
            done += piece.text_bytes
    num_valid = sum(read.valid_rows)
    if rejected := read.rejected:
        lines = num_valid + len(rejected)
        check_rejected_rows(len(rejected), lines, job.max_bad_fraction, rejected, files)
    if num_valid and not read.num_rows:
        raise PreprocError(
            f"{job.input}: no item is in `dictionaries` {job.dictionaries}", setting="dictionaries"
        )
    if not num_valid:
        raise PreprocError(f"{job.input}: has no valid row; get the file again")
    if read.times:
        reporter.note(_described(*read.times, are_dates=layout.dates_of_digits))
    return read


def _described(first: float, last: float, *, are_dates: bool) -> str:
    """Describes the first and the last time, as dates if they are seconds."""
    try:
        dates = [datetime.fromtimestamp(each, UTC).date().isoformat() for each in (first, last)]
    except (ValueError, OverflowError, OSError):
        return (
            f"times from {first:.0f} to {last:.0f} are not seconds since 1970: histories are in "
            "the right order, but the days of a temporal split are wrong"
        )
    form = "dates such as 20240112" if are_dates else "seconds since 1970"
    return f"times, read as {form}: from {dates[0]} to {dates[1]}"


def nothing_left(job: RatingsJob, num_rows: int) -> PreprocError:
    """Returns the error for filters that drop every row."""
    return PreprocError(
        f"{job.input}: none of {num_rows:,} interactions is left after `min_rating` "
        f"{job.min_rating:g}, `min_user_count` {job.min_user_count} and `min_item_count` "
        f"{job.min_item_count} ({job.kcore}); lower them",
        settings=("min_rating", "min_user_count", "min_item_count"),
    )


def _reject(
    job: RatingsJob,
    file: InputFile,
    layout: RatingsFormat,
    piece: Piece,
    rejected: list[RejectedRow],
) -> None:
    """Appends the rejected rows of a piece to `rejected`; raises if none is allowed."""
    first, end = piece.lines
    for offset, number, row in piece.rejected:
        reason, text = cast(Fault, layout.read(row))
        if job.max_bad_fraction == 0:
            if reason in MAY_BE_ENCODING:
                count = min(end - first, _LOOKED_AT)
                lines = first_lines(file, first - 1 + count)[first - 1 :]
                if fault := encoding_fault(file, lines, range(first, first + count)):
                    raise PreprocError(fault)
            num_bad = len(piece.rejected)
            raise TooManyRejectedRowsError(
                f"{file.path}, {position(file, number, offset)}: {text} ({reason}). "
                + _remedies(layout, reason, num_bad, end - first)
            )
        rejected.append(RejectedRow(file.name, offset, number, reason, row))
        if len(rejected) > MAX_QUARANTINED_ROWS:
            raise TooManyRejectedRowsError(
                f"{file.path}: more than {MAX_QUARANTINED_ROWS:,} rows are bad, the last at line "
                f"{number} ({reason}); this is not a file of format {layout.name}: get it again, "
                "or set its `format`"
            )


def _remedies(layout: RatingsFormat, reason: str, num_bad: int, num_lines: int) -> str:
    """Returns the possible remedies, and how many rows they cost."""
    is_rare = num_bad < num_lines - 1
    ways = ["Repair the row" if is_rare else "All rows are like this: repair them"]
    if reason in (USER, ITEM) and layout.id_type == "digits" and layout.names:
        ways.append("read ids as text with `id_type` string")
    if reason == TIMESTAMP and not is_rare:
        ways.append(
            "describe how times are written in a file for `format` (docs/quickstarts/own_orders.md)"
        )
    named = dict(zip(layout.columns, layout.names, strict=False))
    useless = {RATING: "it holds no ratings", TIMESTAMP: "rows are in the order of their times"}
    if named and reason in useless and not (reason == TIMESTAMP and is_rare):
        columns = ",".join(
            f"{column}={name}" for column, name in named.items() if column not in (reason, IGNORED)
        )
        ways.append(f"leave the column out if {useless[reason]}: `columns` {shlex.quote(columns)}")
    if is_rare:
        which = f"{num_bad:,} of the first {num_lines:,} lines"
        limit = f"{min(1, 2 * num_bad / num_lines):.1g}"
        ways.append(f"leave such rows out ({which}) with `max_bad_fraction` {limit}")
    return ", or ".join(ways)
