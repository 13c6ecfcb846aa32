# SPDX-License-Identifier: Apache-2.0
"""Dataframe mode, first stage: text to validated rows in parquet, a folder per day.

Spark's text reader gives lines in no order that could be relied upon, but says from which block of
the file each comes, and numbers within a block ascend. Blocks in the order of their first byte, and
lines in the order of their numbers, are the input order; all later stages carry the pair.
"""

import dataclasses
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.criteo_engine import EngineJob, FileRows
from preproc.criteo_input import MAX_LINE_BYTES, long_line_message
from preproc.criteo_reference import reject_reason
from preproc.criteo_schema import (
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    REJECT_REASONS,
    row_grammar,
)
from preproc.errors import PreprocError
from preproc.input_file import InputFile
from preproc.native_scan import SHORTEST_ROW_BYTES
from preproc.quarantine import EXAMPLES, BadRow, check_bad_rows
from preproc.spark_runner import SparkRunner
from preproc.workspace import read_record, settings_key, write_record

_FORMAT = 1
"""Changes whenever the same text could give other rows in the folder of a day."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True, slots=True)
class DayRows:
    """The rows of one file, and where each is.

    Attributes:
        file: the raw file.
        folder: parquet of its rows, bad ones included (`raw` is not NULL there).
        starts: first byte of each block, ascending.
        first_lines: Spark's number of each block's first line.
        positions: number of each block's first line in the file, and the lines in all at the end.
        bad: its bad rows, in order.
    """

    file: InputFile
    folder: Path
    starts: npt.NDArray[np.int64]
    first_lines: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    bad: tuple[BadRow, ...]

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


def read_days(engine_job: EngineJob, runner: SparkRunner) -> list[DayRows]:
    """Validates every row of every day that was not read before.

    Raises:
        TooManyBadRowsError: --max_bad_fraction is exceeded.
        PreprocError: a file cannot be read in this mode, or no row is valid.
    """
    job, inputs = engine_job.job, engine_job.inputs
    for file in inputs:
        if next(file.pieces(), b"").startswith(_BYTE_ORDER_MARK):
            raise PreprocError(
                f"{file.path}: begins with a UTF-8 byte order mark, which Spark's text reader "
                "drops silently; remove it, or use --spark_mode kernel or --engine native"
            )
    total = sum(f.text_bytes for f in inputs)
    days: list[DayRows] = []
    done = _Done()
    with engine_job.reporter.stage("scan", total, done):
        for index, file in enumerate(inputs):
            before = sum(f.text_bytes for f in inputs[:index])
            update = done.of(before, file.text_bytes)
            days.append(_read_day(engine_job, runner, days, update))
            done.rows = sum(d.rows for d in days)
            done.bytes = before + file.text_bytes
    if sum(d.rows for d in days) == 0:
        raise PreprocError(f"--input {job.input}: holds no valid row")
    return days


class _Done:
    """How far a stage is, for the reporter."""

    def __init__(self) -> None:
        self.bytes = 0
        self.rows = 0

    def __call__(self) -> tuple[int, int]:
        return self.bytes, self.rows

    def of(self, before: int, size: int) -> Any:
        """Returns what takes the fraction done of a part."""

        def update(fraction: float) -> None:
            self.bytes = max(self.bytes, before + int(size * fraction))

        return update


def _most_rows(days: list[DayRows], lines: int, unread: tuple[InputFile, ...]) -> float:
    """Returns how many rows the input can have, given the lines of the last day read."""
    if any(f.compression != "none" for f in unread):
        return math.inf  # how much text they hold is not known
    shortest = sum(f.text_bytes for f in unread) // SHORTEST_ROW_BYTES
    return sum(d.lines for d in days) + lines + shortest


def _read_day(
    engine_job: EngineJob, runner: SparkRunner, days: list[DayRows], on_fraction: Any
) -> DayRows:
    """Returns the rows of the day after `days`."""
    inputs, limit = engine_job.inputs, engine_job.job.max_bad_fraction
    file, unread = inputs[len(days)], inputs[len(days) + 1 :]
    earlier = [row for day in days for row in day.bad]

    def too_many(bad: int, lines: int) -> bool:
        return len(earlier) + bad > limit * _most_rows(days, lines, unread)

    key = settings_key({"format": _FORMAT, "file": file.identity})
    folder = engine_job.workspace.unit_dir("rows", key).resolve()
    record_path = folder / "day.json"
    record = read_record(record_path)
    if record is None:
        rows = folder / "rows"
        if not rows.exists():
            _write_rows(runner, file, rows, on_fraction)
        record = _describe(runner, file, rows, too_many)
    blocks = np.array(record["blocks"], dtype=np.int64).reshape(-1, 3)
    bad = tuple(
        BadRow(file.path.name, offset, number, reason, row.encode("latin-1"))
        for offset, number, reason, row in record["bad"]
    )
    bad_rows, lines = record["bad_rows"], int(blocks[:, 2].sum())
    if too_many(bad_rows, lines):
        most_rows = int(_most_rows(days, lines, unread))
        check_bad_rows(len(earlier) + bad_rows, most_rows, limit, [*earlier, *bad])
    write_record(record_path, record)
    return DayRows(
        file=file,
        folder=folder / "rows",
        starts=blocks[:, 0],
        first_lines=blocks[:, 1],
        positions=np.concatenate([[0], np.cumsum(blocks[:, 2])]),
        bad=bad,
    )


def _write_rows(runner: SparkRunner, file: InputFile, rows: Path, on_fraction: Any) -> None:
    # By a link: Spark knows gzip by the name alone.
    link = rows.with_name("day.gz" if file.compression == "gzip" else "day.tsv")
    link.unlink(missing_ok=True)
    link.symlink_to(file.path.resolve())
    text = runner.session.read.text(uri(link), lineSep="\n")
    write_parquet(runner, parse_lines(text), rows, on_fraction)
    link.unlink()


def parse_lines(text: Any) -> Any:
    """Returns columns of the lines that Spark read; `raw` is NULL where the row is valid.

    Never the CSV parser: the grammar decides over the whole line, before anything is converted.
    """
    pattern = sql_text(f"^{row_grammar().pattern.decode()}\\z")
    integers = [f"try_cast(get(f, {i}) AS INT)" for i in range(1, 1 + NUM_NUMERICAL)]
    in_range = " AND ".join(
        f"(get(f, {i}) = '' OR {integer} IS NOT NULL)"
        for i, integer in enumerate(integers, start=1)
    )
    first = 1 + NUM_NUMERICAL
    categories = [f"get(f, {first + c})" for c in range(NUM_CATEGORICAL)]
    lines = text.selectExpr(
        "_metadata.file_block_start AS block",
        "monotonically_increasing_id() AS line",
        "octet_length(value) + 1 AS line_bytes",
        # Bytes, not characters: a row may hold anything but a line feed.
        "IF(endswith(value, char(13)),"
        " substring(CAST(value AS BINARY), 1, octet_length(value) - 1),"
        " CAST(value AS BINARY)) AS row",
    )
    fields = lines.selectExpr(
        "*", "CAST(row AS STRING) AS text", "split(CAST(row AS STRING), char(9), -1) AS f"
    )
    judged = fields.selectExpr(
        "*", f"coalesce(text RLIKE {pattern} AND {in_range}, false) AS valid"
    )
    return judged.selectExpr(
        "block",
        "line",
        "line_bytes",
        f"octet_length(row) > {MAX_LINE_BYTES} AS too_long",
        f"IF(valid, NULL, substring(row, 1, {MAX_LINE_BYTES})) AS raw",
        "get(f, 0) = '1' AS label",
        *(f"{integer} AS i{i}" for i, integer in enumerate(integers)),
        *(
            f"CAST(conv(IF(valid, nullif({text}, ''), NULL), 16, 10) AS BIGINT) AS c{c}"
            for c, text in enumerate(categories)
        ),
    )


def _describe(
    runner: SparkRunner, file: InputFile, rows: Path, too_many: Callable[[int, int], bool]
) -> dict[str, Any]:
    """Returns the blocks and the bad rows of a day; a few of these where they are too many."""
    table = runner.session.read.parquet(uri(rows))
    table.createOrReplaceTempView("day_rows")
    found = runner.wait(
        lambda: runner.session.sql(
            "SELECT block, min(line) AS first, count(*) AS lines, sum(line_bytes) AS bytes,"
            " count(raw) AS bad, bool_or(too_long) AS too_long"
            " FROM day_rows GROUP BY block ORDER BY block"
        ).collect()
    )
    bad: list[tuple[int, int, str, str]] = []
    bad_rows, lines = (sum(block[what] for block in found) for what in ("bad", "lines"))
    if bad_rows:
        positions = dict(_before(found, "lines"))
        offsets = dict(_before(found, "bytes"))
        firsts = {block["block"]: block["first"] for block in found}
        for row in _bad_rows(runner, EXAMPLES if too_many(bad_rows, lines) else bad_rows):
            block = row["block"]
            offset = offsets[block] + row["before"]
            if row["too_long"]:
                raise PreprocError(long_line_message(file.path, offset))
            raw = bytes(row["raw"])
            reason = reject_reason(raw)
            if reason is None:
                raise AssertionError(f"{file.path}: byte {offset}: Spark refused a valid row")
            number = positions[block] + row["line"] - firsts[block] + 1
            bad.append((offset, number, reason, raw.decode("latin-1")))
    return {
        "blocks": [[b["block"], b["first"], b["lines"]] for b in found],
        "bad_rows": bad_rows,
        "bad": bad,
    }


def _before(blocks: list[Any], what: str) -> Iterator[tuple[int, int]]:
    """Yields the sum over the blocks before each."""
    total = 0
    for block in blocks:
        yield block["block"], total
        total += block[what]


def _bad_rows(runner: SparkRunner, count: int) -> list[Any]:
    found: list[Any] = runner.wait(
        lambda: runner.session.sql(
            "SELECT block, line, before, too_long, raw FROM ("
            " SELECT *, sum(line_bytes) OVER (PARTITION BY block ORDER BY line) - line_bytes"
            " AS before FROM day_rows"
            " WHERE block IN (SELECT block FROM day_rows WHERE raw IS NOT NULL))"
            f" WHERE raw IS NOT NULL ORDER BY block, line LIMIT {count}"
        ).collect()
    )
    return found


def write_parquet(
    runner: SparkRunner,
    table: Any,
    folder: Path,
    on_fraction: Callable[[float], None],
    by: str | None = None,
) -> None:
    """Writes a table as parquet; the folder has its name only when it is complete.

    Args:
        runner: runs the query.
        table: a DataFrame.
        folder: to make.
        on_fraction: told now and then how far it is.
        by: column whose values become folders.
    """
    temporary = folder.with_name(folder.name + ".tmp")
    for left in (temporary, folder):
        shutil.rmtree(left, ignore_errors=True)
    runner.query(lambda: table.write.parquet(f"file://{temporary}", partitionBy=by), on_fraction)
    temporary.rename(folder)


def uri(path: Path) -> str:
    """Returns how to name a file or folder to read; Spark would take some names as patterns."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))


def sql_text(text: str) -> str:
    """Returns a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
