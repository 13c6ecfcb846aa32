# SPDX-License-Identifier: Apache-2.0
"""The Spark SQL engine of ratings.

The driver reads the file, and writes the rows that match the grammar and reach `min_rating` as
parquet parts to storage that executors see. Spark filters for the k-core, joins the rows with the
dense ids and sorts them. The driver holds the distinct raw ids, and 8 bytes for each row that
passes the filters.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.progress import Progress, ProgressReporter
from preproc.ratings.engines.parts import PartRows
from preproc.ratings.format import ITEM, ROW, TIMESTAMP, USER
from preproc.ratings.job import RatingsJob
from preproc.ratings.stages import FIRST_IDS, EngineRows, Ordered, order_ids
from preproc.spark import session as spark_session
from preproc.spark.runner import SparkRunner
from recsys.data.sequences.histories import RawIds

_ID, _TIED = "id", "is_tied"


@contextlib.contextmanager
def open_rows(job: RatingsJob, folder: Path, reporter: ProgressReporter) -> Iterator[EngineRows]:
    """Starts Spark; see `OpenRows`."""
    with spark_session.connect(job.spark) as runner:
        yield SparkRows(runner.for_sql(job.spark.spark_conf), folder.resolve(), reporter)


class SparkRows(PartRows):
    """The rows in parquet files; each step of Spark replaces them. See `EngineRows`.

    Attributes:
        engine: name and version.
        num_rows: rows after the last step.
    """

    def __init__(self, runner: SparkRunner, folder: Path, reporter: ProgressReporter) -> None:
        super().__init__(folder / "raw")
        self._runner, self._reporter = runner, reporter
        self._steps = 0
        self.engine = {"name": "spark", "version": runner.version}

    def finish(self) -> None:
        """Opens the files."""
        self._table = self._read(self.folder)

    def _read(self, path: Path) -> Any:
        """Returns parquet files as a DataFrame."""
        escaped = re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))  # Spark's glob characters
        return self._runner.session.read.parquet(f"file://{escaped}")

    def _write(self, stage: str, table: Any) -> Path:
        """Writes a DataFrame next to the rows, with progress; returns its folder."""
        self._steps += 1
        target = self.folder.with_name(f"{self._steps:03d}_{stage}")
        total = sum(p.stat().st_size for p in self.folder.glob("*.parquet"))
        progress = Progress()

        def on_fraction(fraction: float) -> None:
            progress.bytes = int(fraction * total)

        with self._reporter.stage(stage, total, progress.counters):
            self._runner.query(lambda: table.write.parquet(f"file://{target}"), on_fraction)
            progress.bytes = total
        return target

    def drop_rare(self, minimums: Mapping[str, int]) -> None:
        """Counts and filters all columns in one query."""
        for column, minimum in minimums.items():
            counts = self._table.groupBy(column).count()
            enough = counts.where(f"`count` >= {minimum}").select(column)
            self._table = self._table.join(enough, column, "left_semi")
        written = self._write("kcore", self._table)
        shutil.rmtree(self.folder)
        self.folder, self._table = written, self._read(written)
        self.num_rows = sum(pq.read_metadata(p).num_rows for p in written.glob("*.parquet"))

    def number(self) -> dict[str, RawIds]:
        """Counts each column, and joins the rows with dense ids."""
        rows, ids = self._table, {}
        for column, first in FIRST_IDS.items():
            counted = pq.read_table(self._write("count", rows.groupBy(column).count()))
            raw = RawIds(counted[column].combine_chunks(), counted["count"].to_numpy())
            ids[column] = raw.take(order_ids(column, raw))
            numbers = np.arange(len(raw), dtype=np.int32) + first
            path = self.folder.with_name(f"ids_{column}.parquet")
            pq.write_table(pa.table({column: ids[column].raw, _ID: numbers}), path)
            joined = self._table.join(self._read(path), column)
            self._table = joined.drop(column).withColumnRenamed(_ID, column)
        return ids

    def ordered(self, *, with_times: bool) -> Ordered:
        """Orders the rows on the executors, and loads them."""
        order = [TIMESTAMP, ROW] if self.has_timestamps else [ROW]
        table = self._table.repartitionByRange(USER).sortWithinPartitions(USER, *order)
        columns = [ITEM]
        if self.has_timestamps:
            before = f"lag({TIMESTAMP}) OVER (PARTITION BY `{USER}` ORDER BY {', '.join(order)})"
            columns += [TIMESTAMP, f"{before} <=> {TIMESTAMP} AS {_TIED}"]
        parts = sorted(self._write("order", table.selectExpr(*columns)).glob("*.parquet"))

        def load(column: str) -> npt.NDArray[Any]:
            return np.concatenate(
                [pq.read_table(p, columns=[column])[column].to_numpy() for p in parts]
            )

        return Ordered(
            load(ITEM),
            load(_TIED) if self.has_timestamps else None,
            load(TIMESTAMP) if with_times else None,
        )
