# SPDX-License-Identifier: Apache-2.0
"""Maps Spark's (block, line) to line, row and byte of the input file."""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preproc.criteo.engine import FileRows
from preproc.criteo.rules import REJECT_REASONS
from preproc.files.input_file import InputFile
from preproc.files.quarantine import RejectedRow


@dataclasses.dataclass(frozen=True, slots=True)
class DayRows:
    """The rows of one file, and where each is.

    Attributes:
        file: the raw file.
        starts: first byte of each block, ascending.
        first_lines: Spark's number of each block's first line.
        positions: number of each block's first line in the file, and the lines in all at the end.
        bad: its bad rows, in order.
    """

    file: InputFile
    starts: npt.NDArray[np.int64]
    first_lines: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    bad: tuple[RejectedRow, ...]

    @property
    def lines(self) -> int:
        """Lines of the file, good and bad."""
        return int(self.positions[-1])

    @property
    def rows(self) -> int:
        """Valid rows of the file."""
        return self.lines - len(self.bad)

    def file_rows(self) -> FileRows:
        """Returns the counts for the manifest."""
        rejected = {r: sum(b.reason == r for b in self.bad) for r in REJECT_REASONS}
        return FileRows(rows=self.rows, lines=self.lines, rejected=rejected)

    def _bad_positions(self) -> npt.NDArray[np.int64]:
        return np.array([b.line_number - 1 for b in self.bad], dtype=np.int64)

    def row_numbers(
        self, blocks: npt.NDArray[np.int64], lines: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Returns which valid row of the file each is, by its block and Spark's line number."""
        index = np.searchsorted(self.starts, blocks)
        position = self.positions[index] + lines - self.first_lines[index]
        return position - np.searchsorted(self._bad_positions(), position)

    def first_rows_condition(self, rows: int) -> str:
        """Returns the SQL condition that holds for the first `rows` valid rows."""
        bad = self._bad_positions()
        position, before = rows, -1
        while before != position:  # the lines before it hold so many rows, and the bad ones
            before, position = position, rows + int(np.searchsorted(bad, position))
        index = int(np.searchsorted(self.positions[:-1], position, side="right")) - 1
        line = int(self.first_lines[index] + position - self.positions[index])
        start = int(self.starts[index])
        return f"(block < {start}L OR (block = {start}L AND line < {line}L))"


@dataclasses.dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows of neighbouring files: one unit of the stages, small files together.

    Attributes:
        key: names everything the rows depend on.
        folder: parquet of the rows, bad ones included (`raw` is not NULL there); `day` counts the
            files of the group.
        days: the files, in order.
    """

    key: str
    folder: Path
    days: tuple[DayRows, ...]

    @property
    def rows(self) -> int:
        """Valid rows of the group."""
        return sum(day.rows for day in self.days)

    @property
    def text_bytes(self) -> int:
        """Bytes of text, for progress."""
        return sum(day.file.text_bytes for day in self.days)

    def first_rows_condition(self, rows: int) -> str:
        """Returns the SQL condition that holds for the first `rows` valid rows."""
        whole = 0
        while whole + 1 < len(self.days) and rows >= self.days[whole].rows:
            rows -= self.days[whole].rows
            whole += 1
        return (
            f"(day < {whole} OR (day = {whole} AND {self.days[whole].first_rows_condition(rows)}))"
        )


def all_days(groups: list[RowGroup]) -> list[DayRows]:
    """Returns the files of all groups."""
    return [day for group in groups for day in group.days]
