# SPDX-License-Identifier: Apache-2.0
"""The Spark SQL engine of ratings.

The driver reads the file, and writes the rows that match the grammar and reach `min_rating` as
parquet parts to storage that executors see. Spark filters for the k-core, joins the rows with the
dense ids and sorts them. The driver orders the ids (`ratings.ids`); it holds the distinct raw ids
and 4 bytes for each row that passes the filters.
"""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.progress import Progress, ProgressReporter
from preproc.files.text_chunks import BoolArray
from preproc.ratings.format import ITEM, ROW, TIMESTAMP, USER
from preproc.ratings.histories import Filtered, Read, collect
from preproc.ratings.ids import FIRST_IDS, order_ids, repeat_passes
from preproc.ratings.job import RatingsJob
from preproc.ratings.read import RawParts, nothing_left
from preproc.spark import session as spark_session
from preproc.spark.runner import SparkRunner
from recsys.data.sequences.histories import RawIds
from recsys.files.durable import sync_tree

_BATCH_ROWS = 2**18


def run(
    job: RatingsJob, read: Read, folder: Path, reporter: ProgressReporter
) -> tuple[Filtered, dict[str, Any]]:
    """Makes the histories of a ratings file with Spark SQL; see `Engine`."""
    with spark_session.connect(job.spark) as connected:
        runner = connected.for_sql(job.spark.spark_conf)
        raw = RawParts(folder.resolve() / "raw")
        raw.folder.mkdir()
        rows_read = read(raw)
        rows = _Rows(runner, reporter, raw.folder, raw.num_rows)

        def drop_rare() -> None:
            table = rows.table()
            for column, minimum in job.min_counts.items():
                if minimum > 1:
                    counts = table.groupBy(column).count()
                    enough = counts.where(f"`count` >= {minimum}").select(column)
                    table = table.join(enough, column, "left_semi")
            rows.replace("kcore", table)

        passes = repeat_passes(job.kcore, lambda: rows.num_rows, drop_rare)
        if not rows.num_rows:
            raise nothing_left(job, rows_read.num_rows)
        users, items = rows.number(USER), rows.number(ITEM)
        rows.replace("order", _ordered(rows, [TIMESTAMP] if raw.has_timestamps else []))
        loaded, times, is_tied = _load(
            rows, users, has_times=raw.has_timestamps, with_times=job.quantile is not None
        )
        filtered = collect(loaded, times, users, items, is_tied, rows_read, passes, reporter)
    return filtered, {"name": "spark", "version": runner.version}


@dataclasses.dataclass(slots=True)
class _Rows:
    """The rows after the last step, and the vocabularies of their columns.

    Attributes:
        runner: runs the queries.
        reporter: shows the stages.
        folder: parquet files of the rows; vocabularies are beside it.
        num_rows: rows after the last step.
    """

    runner: SparkRunner
    reporter: ProgressReporter
    folder: Path
    num_rows: int
    _steps: int = 0

    def table(self) -> Any:
        """Returns the rows as a DataFrame."""
        return self.runner.session.read.parquet(_uri(self.folder))

    def vocabulary(self, column: str) -> Any:
        """Returns a DataFrame with `column` and `column`_id."""
        return self.runner.session.read.parquet(_uri(self._vocabulary(column)))

    def _vocabulary(self, column: str) -> Path:
        return self.folder.with_name(f"ids_{column}.parquet")

    def write(self, stage: str, table: Any) -> Path:
        """Writes a DataFrame beside the rows, showing progress; returns its folder."""
        self._steps += 1
        target = self.folder.with_name(f"{self._steps:03d}_{stage}")
        temporary = target.with_name(target.name + ".tmp")
        total = sum(p.stat().st_size for p in self.folder.glob("*.parquet"))
        progress = Progress()

        def on_fraction(fraction: float) -> None:
            progress.bytes = int(fraction * total)

        with self.reporter.stage(stage, total, progress.counters):
            self.runner.query(lambda: table.write.parquet(f"file://{temporary}"), on_fraction)
            sync_tree(temporary)
            temporary.rename(target)
            progress.bytes = total
        return target

    def replace(self, stage: str, table: Any) -> None:
        """Replaces the rows by a DataFrame."""
        written = self.write(stage, table)
        shutil.rmtree(self.folder)
        self.folder = written
        self.num_rows = sum(pq.read_metadata(p).num_rows for p in written.glob("*.parquet"))

    def number(self, column: str) -> RawIds:
        """Counts and numbers a column's raw ids, and writes its vocabulary."""
        written = self.write("count", self.table().groupBy(column).count())
        counted = pq.read_table(written)
        raw = counted[column].combine_chunks()
        counts = counted["count"].to_numpy()
        order = order_ids(column, raw, counts)
        ids = RawIds(raw.take(pa.array(order)), counts[order])
        numbers = np.arange(len(ids), dtype=np.int32) + FIRST_IDS[column]
        table = pa.table({column: ids.raw, f"{column}_id": numbers})
        pq.write_table(table, self._vocabulary(column))
        shutil.rmtree(written)
        return ids


def _uri(path: Path) -> str:
    """Returns the URI of a path, with Spark's glob characters escaped."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))


def _ordered(rows: _Rows, times: list[str]) -> Any:
    """Returns the rows in dense ids, ordered by user and time."""
    table = rows.table()
    for column in (USER, ITEM):
        table = table.join(rows.vocabulary(column), column)
    order = [f"{USER}_id", *times, ROW]
    table = table.select(*order, f"{ITEM}_id")
    return table.repartitionByRange(order[0]).sortWithinPartitions(*order)


def _load(
    rows: _Rows, users: RawIds, *, has_times: bool, with_times: bool
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64] | None, BoolArray | None]:
    """Reads rows that are ordered by user and time.

    Returns:
        [rows] item ids; times, None without `with_times`; whether user and time are those of the
        row before, None without `has_times`.
    """
    columns = [f"{USER}_id", f"{ITEM}_id", *([TIMESTAMP] if has_times else [])]
    is_tied = np.zeros(rows.num_rows, np.bool_) if has_times else None
    last_time: int | None = None
    items = np.empty(rows.num_rows, np.int32)
    times = np.empty(rows.num_rows, np.int64) if with_times else None
    counts = np.zeros(len(users), np.int64)
    row, last = 0, 0
    for path in sorted(rows.folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                ids = batch[f"{USER}_id"].to_numpy()
                if ids[0] < last or (np.diff(ids) < 0).any():
                    raise AssertionError(f"{path}: users are not in the order of their ids")
                if is_tied is not None:
                    own = batch[TIMESTAMP].to_numpy()
                    same = (ids[1:] == ids[:-1]) & (own[1:] == own[:-1])
                    is_tied[row] = last_time == own[0] and last == ids[0]
                    is_tied[row + 1 : row + len(ids)] = same
                    last_time = int(own[-1])
                last = int(ids[-1])
                counts += np.bincount(ids, minlength=len(counts))
                items[row : row + len(ids)] = batch[f"{ITEM}_id"].to_numpy()
                if times is not None:
                    times[row : row + len(ids)] = batch[TIMESTAMP].to_numpy()
                row += len(ids)
    if not np.array_equal(counts, users.counts):
        raise AssertionError(f"{rows.folder}: users have other rows than were counted")
    return items, times, is_tied
