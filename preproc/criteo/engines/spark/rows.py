# SPDX-License-Identifier: Apache-2.0
"""First stage of dataframe mode: validates text and writes it as parquet.

Spark's text reader does not keep the order of lines. But it gives the block of the file that a line
is from, by its first byte, and numbers that ascend within a block. Sorting by (block, line) is the
input order, so all later stages keep these two columns.
"""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from preproc.criteo.engine import EngineJob
from preproc.criteo.engines.spark.row_numbers import DayRows, UnitRows, all_days
from preproc.criteo.input import long_line_message
from preproc.criteo.rules import (
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    SHORTEST_ROW_BYTES,
    reject_reason,
    row_grammar,
)
from preproc.files.errors import PreprocError
from preproc.files.input_file import MAX_LINE_BYTES, InputFile
from preproc.files.quarantine import EXAMPLES, RejectedRow, check_rejected_rows
from preproc.files.workspace import read_record, write_record
from preproc.spark.runner import SparkRunner
from preproc.spark.sql import sql_text, uri, write_parquet

UNIT_BYTES = 2**30
"""Most text of several files in one unit; a Spark job takes seconds to start."""


def plan_units(inputs: tuple[InputFile, ...]) -> list[tuple[InputFile, ...]]:
    """Returns the files of each unit; consecutive small files are one unit."""
    units: list[list[InputFile]] = []
    for file in inputs:
        if not units or sum(f.text_bytes for f in [*units[-1], file]) > UNIT_BYTES:
            units.append([])
        units[-1].append(file)
    return [tuple(unit) for unit in units]


def read_rows(engine_job: EngineJob, runner: SparkRunner) -> list[UnitRows]:
    """Validates the rows of every unit that was not read before.

    Raises:
        TooManyRejectedRowsError: `max_bad_fraction` is exceeded.
        PreprocError: a file cannot be read in this mode, or no row is valid.
    """
    job, inputs = engine_job.job, engine_job.inputs
    units: list[UnitRows] = []
    done = [0, 0]
    with engine_job.reporter.stage(
        "scan", sum(f.text_bytes for f in inputs), lambda: (done[0], done[1])
    ):
        for files in plan_units(inputs):
            before, size = sum(u.text_bytes for u in units), sum(f.text_bytes for f in files)

            def update(fraction: float, before: int = before, size: int = size) -> None:
                done[0] = max(done[0], before + int(size * fraction))

            units.append(_read_unit(engine_job, runner, units, files, update))
            done[:] = [before + size, sum(u.rows for u in units)]
    if sum(u.rows for u in units) == 0:
        raise PreprocError(f"`input` {job.input}: holds no valid row")
    return units


def _read_unit(
    engine_job: EngineJob,
    runner: SparkRunner,
    units: list[UnitRows],
    files: tuple[InputFile, ...],
    on_fraction: Callable[[float], None],
) -> UnitRows:
    """Validates the files of the unit that follows `units`."""
    limit = engine_job.job.max_bad_fraction
    earlier = all_days(units)
    unread = engine_job.inputs[len(earlier) + len(files) :]

    def most_rows(lines: int) -> float:
        if any(f.compression != "none" for f in unread):
            return math.inf  # the size of their text is not known
        shortest = sum(f.text_bytes for f in unread) // SHORTEST_ROW_BYTES
        return sum(d.lines for d in earlier) + lines + shortest

    def too_many(rejected: int, lines: int) -> bool:
        return sum(len(d.rejected) for d in earlier) + rejected > limit * most_rows(lines)

    unlabelled = engine_job.job.semantics.unlabelled
    folder = engine_job.work_folder("rows", files).resolve()
    rows = folder / "rows"
    record = read_record(folder / "rows.json")
    if record is None:
        if not rows.exists():
            _write_rows(runner, files, rows, on_fraction, unlabelled=unlabelled)
            _check_unchanged(files, rows)
        record = _describe(runner, files, rows, too_many, unlabelled=unlabelled)
    days = tuple(
        _day(file, [b[1:] for b in record["blocks"] if b[0] == i], record["bad"][i])
        for i, file in enumerate(files)
    )
    rejected, lines = record["bad_rows"], sum(d.lines for d in days)
    if too_many(rejected, lines):
        before = [row for d in earlier for row in d.rejected]
        examples = [*before, *(row for d in days for row in d.rejected)]
        check_rejected_rows(len(before) + rejected, int(most_rows(lines)), limit, examples)
    write_record(folder / "rows.json", record)
    return UnitRows(folder.name, rows, days)


def _check_unchanged(files: tuple[InputFile, ...], rows: Path) -> None:
    """Refuses files that changed meanwhile; removes what was read of them."""
    try:
        for file in files:
            file.check_unchanged()
    except PreprocError:
        shutil.rmtree(rows)
        raise


def _day(file: InputFile, blocks: list[list[int]], rejected: list[Any]) -> DayRows:
    table = np.array(blocks, dtype=np.int64).reshape(-1, 3)
    return DayRows(
        file=file,
        starts=table[:, 0],
        first_lines=table[:, 1],
        lines_before=np.concatenate([[0], np.cumsum(table[:, 2])]),
        rejected=tuple(
            RejectedRow(file.path.name, offset, number, reason, row.encode("latin-1"))
            for offset, number, reason, row in rejected
        ),
    )


def _write_rows(
    runner: SparkRunner,
    files: tuple[InputFile, ...],
    rows: Path,
    on_fraction: Callable[[float], None],
    *,
    unlabelled: bool,
) -> None:
    # Links: their names number the files, and Spark recognises gzip by the name alone.
    links = rows.with_name("links")
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for index, file in enumerate(files):
        suffix = "gz" if file.compression == "gzip" else "tsv"
        (links / f"{index:05d}.{suffix}").symlink_to(file.path.resolve())
    text = runner.session.read.text([uri(p) for p in sorted(links.iterdir())], lineSep="\n")
    try:
        write_parquet(runner, parse_lines(text, unlabelled=unlabelled), rows, on_fraction)
    except PreprocError as error:
        unreadable = re.search(r"/links/([0-9]{5})\.", str(error.__cause__))
        if unreadable is None:
            raise
        path = files[int(unreadable[1])].path
        raise PreprocError(f"{path}: Spark cannot read it to its end: {error}") from error
    shutil.rmtree(links)


def parse_lines(text: Any, *, unlabelled: bool = False) -> Any:
    """Parses and validates lines without a CSV parser.

    The grammar is matched with the whole line before any field is converted.

    Args:
        text: DataFrame of Spark's text reader.
        unlabelled: rows have no label; theirs is false.

    Returns:
        DataFrame of the columns below; `raw` is the text of a rejected row, NULL in valid rows.
    """
    pattern = sql_text(f"^{row_grammar(unlabelled=unlabelled).pattern.decode()}\\z")
    first = 0 if unlabelled else 1
    texts = [f"get(f, {first + i})" for i in range(NUM_NUMERICAL + NUM_CATEGORICAL)]
    integers = [f"try_cast({text} AS INT)" for text in texts[:NUM_NUMERICAL]]
    in_range = " AND ".join(
        f"({text} = '' OR {integer} IS NOT NULL)"
        for text, integer in zip(texts, integers, strict=False)
    )
    categories = texts[NUM_NUMERICAL:]
    lines = text.selectExpr(
        "CAST(left(_metadata.file_name, 5) AS INT) AS day",
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
    checked = fields.selectExpr(
        "*", f"coalesce(text RLIKE {pattern} AND {in_range}, false) AS valid"
    )
    return checked.selectExpr(
        "day",
        "block",
        "line",
        "line_bytes",
        f"octet_length(row) > {MAX_LINE_BYTES} AS too_long",
        f"IF(valid, NULL, substring(row, 1, {MAX_LINE_BYTES})) AS raw",
        "false AS label" if unlabelled else "get(f, 0) = '1' AS label",
        *(f"{integer} AS i{i}" for i, integer in enumerate(integers)),
        *(
            f"CAST(conv(IF(valid, nullif({text}, ''), NULL), 16, 10) AS BIGINT) AS c{c}"
            for c, text in enumerate(categories)
        ),
    )


def _describe(
    runner: SparkRunner,
    files: tuple[InputFile, ...],
    rows: Path,
    too_many: Callable[[int, int], bool],
    *,
    unlabelled: bool,
) -> dict[str, Any]:
    """Returns a unit's record: blocks and rejected rows of its files.

    If too many rows are rejected, only those that the error shows are included.
    """
    runner.session.read.parquet(uri(rows)).createOrReplaceTempView("lines")
    blocks = runner.wait(
        lambda: runner.session.sql(
            "SELECT day, block, min(line) AS first, count(*) AS lines, sum(line_bytes) AS bytes,"
            " count(raw) AS bad FROM lines GROUP BY day, block ORDER BY day, block"
        ).collect()
    )
    rejected: list[list[tuple[int, int, str, str]]] = [[] for _ in files]
    count, lines = (sum(block[name] for block in blocks) for name in ("bad", "lines"))
    if count:
        starts = _block_starts(blocks)
        for row in _rejected_rows(runner, EXAMPLES if too_many(count, lines) else count):
            first_line, lines_before, offset = starts[row["day"], row["block"]]
            offset += row["before"]
            path = files[row["day"]].path
            if row["too_long"]:
                raise PreprocError(long_line_message(path, offset))
            raw = bytes(row["raw"])
            reason = reject_reason(raw, unlabelled=unlabelled)
            if reason is None:
                raise AssertionError(f"{path}: byte {offset}: Spark refused a valid row")
            number = lines_before + row["line"] - first_line + 1
            rejected[row["day"]].append((offset, number, reason, raw.decode("latin-1")))
    return {
        "blocks": [[b["day"], b["block"], b["first"], b["lines"]] for b in blocks],
        "bad_rows": count,
        "bad": rejected,
    }


def _block_starts(blocks: list[Any]) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Maps (day, block) to its first line, lines before, bytes before.

    The first line is Spark's number of it; lines and bytes are counted from the file's start.
    """
    starts = {}
    day, lines, size = -1, 0, 0
    for block in blocks:
        if block["day"] != day:
            day, lines, size = block["day"], 0, 0
        starts[day, block["block"]] = (block["first"], lines, size)
        lines, size = lines + block["lines"], size + block["bytes"]
    return starts


def _rejected_rows(runner: SparkRunner, count: int) -> list[Any]:
    rows: list[Any] = runner.wait(
        lambda: runner.session.sql(
            "SELECT day, block, line, before, too_long, raw FROM ("
            " SELECT *, sum(line_bytes) OVER (PARTITION BY day, block ORDER BY line) - line_bytes"
            " AS before FROM lines LEFT SEMI JOIN"
            " (SELECT DISTINCT day AS d, block AS b FROM lines WHERE raw IS NOT NULL)"
            " ON day = d AND block = b)"
            f" WHERE raw IS NOT NULL ORDER BY day, block, line LIMIT {count}"
        ).collect()
    )
    return rows
