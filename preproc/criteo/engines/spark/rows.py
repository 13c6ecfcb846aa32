# SPDX-License-Identifier: Apache-2.0
"""Dataframe mode, first stage: text to validated rows in parquet.

Spark's text reader gives lines in no order that could be relied upon, but says from which block of
the file each comes, and numbers within a block ascend. Blocks in the order of their first byte, and
lines in the order of their numbers, are the input order; all later stages carry the pair.
"""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from preproc.criteo.engine import EngineJob
from preproc.criteo.engines.spark.row_numbers import DayRows, RowGroup, all_days
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
from preproc.files.workspace import read_record, settings_key, write_record
from preproc.spark.runner import SparkRunner
from preproc.spark.sql import sql_text, uri, write_parquet

_FORMAT = 1
"""Changes whenever the same text could give other rows in the folder of a day."""

GROUP_BYTES = 2**30
"""Text of files that are worked on together: a job of Spark takes seconds to begin."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def plan_groups(inputs: tuple[InputFile, ...]) -> list[tuple[InputFile, ...]]:
    """Returns neighbouring files together, as long as they are small."""
    groups: list[list[InputFile]] = []
    for file in inputs:
        if not groups or sum(f.text_bytes for f in [*groups[-1], file]) > GROUP_BYTES:
            groups.append([])
        groups[-1].append(file)
    return [tuple(group) for group in groups]


def read_rows(engine_job: EngineJob, runner: SparkRunner) -> list[RowGroup]:
    """Validates every row of every file that was not read before.

    Raises:
        TooManyRejectedRowsError: --max_bad_fraction is exceeded.
        PreprocError: a file cannot be read in this mode, or no row is valid.
    """
    job, inputs = engine_job.job, engine_job.inputs
    for file in inputs:
        if next(file.blocks(), b"").startswith(_BYTE_ORDER_MARK):
            raise PreprocError(
                f"{file.path}: begins with a UTF-8 byte order mark, which Spark's text reader "
                "drops silently; remove it, or use `spark_mode` kernel or `engine` native"
            )
    groups: list[RowGroup] = []
    done = [0, 0]
    with engine_job.reporter.stage(
        "scan", sum(f.text_bytes for f in inputs), lambda: (done[0], done[1])
    ):
        for files in plan_groups(inputs):
            before, size = sum(g.text_bytes for g in groups), sum(f.text_bytes for f in files)

            def update(fraction: float, before: int = before, size: int = size) -> None:
                done[0] = max(done[0], before + int(size * fraction))

            groups.append(_read_group(engine_job, runner, groups, files, update))
            done[:] = [before + size, sum(g.rows for g in groups)]
    if sum(g.rows for g in groups) == 0:
        raise PreprocError(f"`input` {job.input}: holds no valid row")
    return groups


def _read_group(
    engine_job: EngineJob,
    runner: SparkRunner,
    groups: list[RowGroup],
    files: tuple[InputFile, ...],
    on_fraction: Callable[[float], None],
) -> RowGroup:
    """Returns the rows of the files after `groups`."""
    limit = engine_job.job.max_bad_fraction
    earlier = all_days(groups)
    unread = engine_job.inputs[len(earlier) + len(files) :]

    def most_rows(lines: int) -> float:
        if any(f.compression != "none" for f in unread):
            return math.inf  # how much text they hold is not known
        shortest = sum(f.text_bytes for f in unread) // SHORTEST_ROW_BYTES
        return sum(d.lines for d in earlier) + lines + shortest

    def too_many(bad: int, lines: int) -> bool:
        return sum(len(d.bad) for d in earlier) + bad > limit * most_rows(lines)

    key = settings_key({"format": _FORMAT, "files": [f.identity for f in files]})
    folder = engine_job.workspace.unit_dir("rows", key).resolve()
    rows = folder / "rows"
    record = read_record(folder / "rows.json")
    if record is None:
        if not rows.exists():
            _write_rows(runner, files, rows, on_fraction)
        record = _describe(runner, files, rows, too_many)
    days = tuple(
        _day(file, [b[1:] for b in record["blocks"] if b[0] == i], record["bad"][i])
        for i, file in enumerate(files)
    )
    bad_rows, lines = record["bad_rows"], sum(d.lines for d in days)
    if too_many(bad_rows, lines):
        before = [row for d in earlier for row in d.bad]
        examples = [*before, *(row for d in days for row in d.bad)]
        check_rejected_rows(len(before) + bad_rows, int(most_rows(lines)), limit, examples)
    write_record(folder / "rows.json", record)
    return RowGroup(key, rows, days)


def _day(file: InputFile, blocks: list[list[int]], bad: list[Any]) -> DayRows:
    table = np.array(blocks, dtype=np.int64).reshape(-1, 3)
    return DayRows(
        file=file,
        starts=table[:, 0],
        first_lines=table[:, 1],
        positions=np.concatenate([[0], np.cumsum(table[:, 2])]),
        bad=tuple(
            RejectedRow(file.path.name, offset, number, reason, row.encode("latin-1"))
            for offset, number, reason, row in bad
        ),
    )


def _write_rows(
    runner: SparkRunner,
    files: tuple[InputFile, ...],
    rows: Path,
    on_fraction: Callable[[float], None],
) -> None:
    # By links: their names say which file it is, and Spark knows gzip by the name alone.
    links = rows.with_name("links")
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for index, file in enumerate(files):
        suffix = "gz" if file.compression == "gzip" else "tsv"
        (links / f"{index:05d}.{suffix}").symlink_to(file.path.resolve())
    text = runner.session.read.text([uri(p) for p in sorted(links.iterdir())], lineSep="\n")
    try:
        write_parquet(runner, parse_lines(text), rows, on_fraction)
    except PreprocError as error:
        unreadable = re.search(r"/links/([0-9]{5})\.", str(error.__cause__))
        if unreadable is None:
            raise
        path = files[int(unreadable[1])].path
        raise PreprocError(f"{path}: Spark cannot read it to its end: {error}") from error
    shutil.rmtree(links)


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
    judged = fields.selectExpr(
        "*", f"coalesce(text RLIKE {pattern} AND {in_range}, false) AS valid"
    )
    return judged.selectExpr(
        "day",
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
    runner: SparkRunner,
    files: tuple[InputFile, ...],
    rows: Path,
    too_many: Callable[[int, int], bool],
) -> dict[str, Any]:
    """Returns blocks and bad rows of the files; a few of the latter where they are too many."""
    runner.session.read.parquet(uri(rows)).createOrReplaceTempView("lines")
    blocks = runner.wait(
        lambda: runner.session.sql(
            "SELECT day, block, min(line) AS first, count(*) AS lines, sum(line_bytes) AS bytes,"
            " count(raw) AS bad FROM lines GROUP BY day, block ORDER BY day, block"
        ).collect()
    )
    bad: list[list[tuple[int, int, str, str]]] = [[] for _ in files]
    bad_rows, lines = (sum(block[what] for block in blocks) for what in ("bad", "lines"))
    if bad_rows:
        places = _places(blocks)
        for row in _bad_rows(runner, EXAMPLES if too_many(bad_rows, lines) else bad_rows):
            first_line, position, offset = places[row["day"], row["block"]]
            offset += row["before"]
            path = files[row["day"]].path
            if row["too_long"]:
                raise PreprocError(long_line_message(path, offset))
            raw = bytes(row["raw"])
            reason = reject_reason(raw)
            if reason is None:
                raise AssertionError(f"{path}: byte {offset}: Spark refused a valid row")
            number = position + row["line"] - first_line + 1
            bad[row["day"]].append((offset, number, reason, raw.decode("latin-1")))
    return {
        "blocks": [[b["day"], b["block"], b["first"], b["lines"]] for b in blocks],
        "bad_rows": bad_rows,
        "bad": bad,
    }


def _places(blocks: list[Any]) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Returns of each block Spark's first line number, and lines and bytes before it."""
    places = {}
    day, lines, size = -1, 0, 0
    for block in blocks:
        if block["day"] != day:
            day, lines, size = block["day"], 0, 0
        places[day, block["block"]] = (block["first"], lines, size)
        lines, size = lines + block["lines"], size + block["bytes"]
    return places


def _bad_rows(runner: SparkRunner, count: int) -> list[Any]:
    found: list[Any] = runner.wait(
        lambda: runner.session.sql(
            "SELECT day, block, line, before, too_long, raw FROM ("
            " SELECT *, sum(line_bytes) OVER (PARTITION BY day, block ORDER BY line) - line_bytes"
            " AS before FROM lines LEFT SEMI JOIN"
            " (SELECT DISTINCT day AS d, block AS b FROM lines WHERE raw IS NOT NULL)"
            " ON day = d AND block = b)"
            f" WHERE raw IS NOT NULL ORDER BY day, block, line LIMIT {count}"
        ).collect()
    )
    return found
