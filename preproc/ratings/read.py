# SPDX-License-Identifier: Apache-2.0
"""Reads a ratings file into columns; refuses or quarantines bad rows."""

import dataclasses
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.errors import PreprocError, TooManyRejectedRowsError
from preproc.files.input_file import InputFile
from preproc.files.progress import ProgressReporter
from preproc.files.quarantine import RejectedRow, check_rejected_rows
from preproc.files.row_files import RowFile
from preproc.files.text_chunks import Chunk, read_chunks
from preproc.ratings.format import RatingsFormat
from preproc.ratings.ids import IdColumn
from preproc.ratings.input import RATINGS_FILE
from preproc.ratings.job import RatingsJob
from preproc.ratings.parse import Interactions, parse_chunk

CHUNK_BYTES = 16 * 2**20
MAX_QUARANTINED_ROWS = 1_000_000

USER, ITEM, TIMESTAMP, RATING, ROW = "user", "item", "timestamp", "rating", "row"


class RatingsSink(Protocol):
    """Takes the rows of a file as they are read.

    Attributes:
        num_rows: good rows.
        bad: rows that were set aside.
    """

    num_rows: int
    bad: list[RejectedRow]

    def add(self, rows: Interactions, min_rating: float) -> None:
        """Takes the next rows; those below `min_rating` are to be dropped."""


@dataclasses.dataclass(slots=True)
class Ratings:
    """The rows of a file that reach --min_rating, in file order.

    Attributes:
        users: raw ids.
        items: raw ids.
        num_rows: good rows, those below --min_rating included.
        below_min_rating: good rows that were dropped.
        bad: rows that were set aside.
    """

    users: IdColumn = dataclasses.field(default_factory=IdColumn)
    items: IdColumn = dataclasses.field(default_factory=IdColumn)
    num_rows: int = 0
    below_min_rating: int = 0
    bad: list[RejectedRow] = dataclasses.field(default_factory=list)
    _timestamps: list[npt.NDArray[np.int64]] = dataclasses.field(default_factory=list)

    def add(self, rows: Interactions, min_rating: float) -> None:
        """Takes the next rows."""
        users, items, timestamps = rows.users, rows.items, rows.timestamps
        self.num_rows += len(rows)
        if rows.ratings is not None and min_rating > 0:
            enough = rows.ratings >= min_rating
            self.below_min_rating += len(rows) - int(enough.sum())
            users, items = (c.filter(pa.array(enough)) for c in (users, items))
            timestamps = None if timestamps is None else timestamps[enough]
        self.users.add(users)
        self.items.add(items)
        if timestamps is not None:
            self._timestamps.append(timestamps)

    def take_timestamps(self) -> npt.NDArray[np.int64] | None:
        """Returns and forgets the times of all rows, if there are any."""
        if not self._timestamps:
            return None
        timestamps = np.concatenate(self._timestamps)
        self._timestamps = []
        return timestamps


@dataclasses.dataclass(slots=True)
class RawParts:
    """Keeps the good rows of a ratings file as parquet files.

    Attributes:
        folder: for the parts; exists.
        parts: those written.
        num_rows: good rows.
        bad: rows that were set aside.
    """

    folder: Path
    parts: list[RowFile] = dataclasses.field(default_factory=list)
    num_rows: int = 0
    bad: list[RejectedRow] = dataclasses.field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Columns of the parts; there is one with a good row."""
        names: list[str] = pq.read_schema(self.parts[0].path).names
        return names

    def add(self, rows: Interactions, min_rating: float) -> None:
        """Writes the next rows; the engine drops those below `min_rating` later."""
        if not len(rows):
            return
        columns: dict[str, Any] = {
            USER: rows.users.cast(pa.string()),
            ITEM: rows.items.cast(pa.string()),
            ROW: np.arange(self.num_rows, self.num_rows + len(rows)),
        }
        if rows.ratings is not None and min_rating > 0:
            columns[RATING] = rows.ratings
        if rows.timestamps is not None:
            columns[TIMESTAMP] = rows.timestamps
        written = RowFile(self.folder / f"{len(self.parts):05d}.parquet", len(rows))
        pq.write_table(pa.table(columns), written.path)
        self.parts.append(written)
        self.num_rows += len(rows)


def read_ratings(
    job: RatingsJob,
    file: InputFile,
    layout: RatingsFormat,
    reporter: ProgressReporter,
    chunk_bytes: int,
    ratings: RatingsSink,
) -> None:
    """Reads a whole file into `ratings`.

    Raises:
        PreprocError: the file cannot be read, or holds no good row.
        TooManyRejectedRowsError: rows break the grammar, and the settings do not allow it.
    """
    done = 0
    with reporter.stage("read", file.text_bytes, lambda: (done, ratings.num_rows)):
        for chunk in read_chunks(file, chunk_bytes, RATINGS_FILE):
            has_header = chunk.offset == 0 and chunk.row(0) in layout.headers
            rows, bad = parse_chunk(chunk, layout, skip_header=has_header)
            if len(bad):
                _set_aside(job, file, layout, chunk, bad, ratings.bad)
            ratings.add(rows, job.min_rating)
            done = chunk.offset + len(chunk.text)
    if ratings.bad:
        lines = ratings.num_rows + len(ratings.bad)
        check_rejected_rows(len(ratings.bad), lines, job.max_bad_fraction, ratings.bad)
    if not ratings.num_rows:
        raise PreprocError(f"{file.path}: holds no valid row; get the file again")


def _set_aside(
    job: RatingsJob,
    file: InputFile,
    layout: RatingsFormat,
    chunk: Chunk,
    places: npt.NDArray[np.int64],
    bad: list[RejectedRow],
) -> None:
    """Keeps bad rows for the quarantine, or refuses the first one."""
    name = file.path.name
    if job.bad_rows == "refuse":
        reason, text = layout.diagnose(chunk.row(places[0]))
        raise TooManyRejectedRowsError(
            f"{file.path}, line {chunk.first_line + places[0]}, byte "
            f"{chunk.offset + chunk.starts[places[0]]}: {text} ({reason}). Repair the row, or "
            "leave such rows out with `bad_rows` quarantine"
        )
    for line in places.tolist():
        row = chunk.row(line)
        bad.append(
            RejectedRow(
                name,
                chunk.offset + int(chunk.starts[line]),
                chunk.first_line + line,
                layout.diagnose(row)[0],
                row,
            )
        )
        if len(bad) > MAX_QUARANTINED_ROWS:
            raise TooManyRejectedRowsError(
                f"{file.path}: more than {MAX_QUARANTINED_ROWS:,} rows are bad, the last at line "
                f"{chunk.first_line + line} ({bad[-1].reason}); this is not a file of format "
                f"{layout.name}: get it again, or name its `format`"
            )
