# SPDX-License-Identifier: Apache-2.0
"""Maps Spark's (block, line) to the row number in a file."""

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
    """Lines and rejected rows of one file, by Spark's blocks.

    Attributes:
        file: the raw file.
        starts: [blocks] first byte of each block, ascending.
        first_lines: [blocks] Spark's number of each block's first line.
        lines_before: [blocks + 1] lines of the file before each block, then all lines.
        rejected: the file's rejected rows, in order.
    """

    file: InputFile
    starts: npt.NDArray[np.int64]
    first_lines: npt.NDArray[np.int64]
    lines_before: npt.NDArray[np.int64]
    rejected: tuple[RejectedRow, ...]

    @property
    def lines(self) -> int:
        """Lines of the file, rejected rows included."""
        return int(self.lines_before[-1])

    @property
    def rows(self) -> int:
        """Valid rows of the file."""
        return self.lines - len(self.rejected)

    def file_rows(self) -> FileRows:
        """Returns the counts for the manifest."""
        rejected = {r: sum(row.reason == r for row in self.rejected) for r in REJECT_REASONS}
        return FileRows(rows=self.rows, lines=self.lines, rejected=rejected)

    def _rejected_lines(self) -> npt.NDArray[np.int64]:
        return np.array([row.line_number - 1 for row in self.rejected], dtype=np.int64)

    def row_numbers(
        self, blocks: npt.NDArray[np.int64], lines: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Returns the numbers of valid rows in the file, from 0.

        Args:
            blocks: [n] first byte of each row's block.
            lines: [n] Spark's line number of each row.
        """
        index = np.searchsorted(self.starts, blocks)
        line = self.lines_before[index] + lines - self.first_lines[index]
        return line - np.searchsorted(self._rejected_lines(), line)

    def first_rows_condition(self, rows: int) -> str:
        """Returns an SQL condition that selects the first `rows` valid rows."""
        rejected = self._rejected_lines()
        end, before = rows, -1
        while before != end:  # the lines before `end` are those rows and the rejected ones
            before, end = end, rows + int(np.searchsorted(rejected, end))
        index = int(np.searchsorted(self.lines_before[:-1], end, side="right")) - 1
        line = int(self.first_lines[index] + end - self.lines_before[index])
        start = int(self.starts[index])
        return f"(block < {start}L OR (block = {start}L AND line < {line}L))"


@dataclasses.dataclass(frozen=True, slots=True)
class UnitRows:
    """The rows of a unit: one file, or several small ones.

    Attributes:
        key: hash of all that the rows depend on.
        folder: parquet of the rows; `raw` is NULL except in rejected rows, and `day` is the number
            of the file in the unit.
        days: the files, in input order.
    """

    key: str
    folder: Path
    days: tuple[DayRows, ...]

    @property
    def rows(self) -> int:
        """Valid rows of the unit."""
        return sum(day.rows for day in self.days)

    @property
    def text_bytes(self) -> int:
        """Bytes of text, for progress."""
        return sum(day.file.text_bytes for day in self.days)

    def first_rows_condition(self, rows: int) -> str:
        """Returns an SQL condition that selects the first `rows` valid rows."""
        whole = 0
        while whole + 1 < len(self.days) and rows >= self.days[whole].rows:
            rows -= self.days[whole].rows
            whole += 1
        return (
            f"(day < {whole} OR (day = {whole} AND {self.days[whole].first_rows_condition(rows)}))"
        )


def all_days(units: list[UnitRows]) -> list[DayRows]:
    """Returns the files of all units."""
    return [day for unit in units for day in unit.days]
