# SPDX-License-Identifier: Apache-2.0
"""Dataframe mode: Spark SQL alone does the work, no Python and no native code on the executors.

scan    text -> validated rows, a parquet folder per day              (rows)
count   rows -> categories counted, ordered and numbered              (dictionaries)
encode  rows joined with the dictionaries -> ids, a folder per group  (here)
join    the ids of a group -> their place in the columns, by the driver (here)

Every folder stands under a key of what it depends on, and has its name only when it is complete.
"""

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from preproc.criteo.engine import EncodedColumns, EngineJob, EngineResult, dictionary_path
from preproc.criteo.engines.native.encode import EncodeStage, staging_folder
from preproc.criteo.engines.spark.dictionaries import (
    SqlDictionaries,
    category,
    copy_dictionaries,
    count_categories,
)
from preproc.criteo.engines.spark.row_numbers import RowGroup, all_days
from preproc.criteo.engines.spark.rows import read_rows
from preproc.criteo.rules import (
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    SPLITS,
    CriteoSemantics,
    Split,
    split_bounds,
)
from preproc.files.input_file import open_fd
from preproc.files.quarantine import QUARANTINE_FILE, write_quarantine
from preproc.files.workspace import settings_key
from preproc.spark.runner import SparkRunner
from preproc.spark.sql import uri, write_parquet
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.positioned_write import write_at
from recsys.data.split_binary import SplitBinaryWriter

BROADCAST_CATEGORIES = 4 * 2**20
"""A larger dictionary is joined by a shuffle: every executor would hold it, about 40 B each."""

_BATCH_ROWS = 2**16


def run(engine_job: EngineJob, runner: SparkRunner) -> EngineResult:
    """Prepares a dataset with Spark SQL."""
    job, semantics = engine_job.job, engine_job.job.semantics
    runner = runner.for_sql(job.spark.spark_conf)
    groups = read_rows(engine_job, runner)
    days = all_days(groups)
    dictionaries = count_categories(engine_job, runner, groups)
    bounds = split_bounds([day.rows for day in days], semantics)
    key = settings_key(
        {
            "dictionaries": dictionaries.key,
            "splits": bounds,
            "format": sorted(job.format),
            "numerical": [
                semantics.numerical_offset,
                semantics.numerical_min,
                semantics.numerical_missing,
            ],
        }
    )
    stage = EncodeStage(staging_folder(engine_job, key), job.format)
    cardinalities = tuple(kept + 1 for kept in dictionaries.kept)
    _encode_groups(engine_job, runner, groups, dictionaries, _Places(stage, bounds, cardinalities))
    copy_dictionaries(
        dictionaries, [dictionary_path(stage.dataset, c) for c in range(NUM_CATEGORICAL)]
    )
    bad = [row for day in days for row in day.bad]
    if bad:
        write_quarantine(stage.dataset / QUARANTINE_FILE, bad)
    records = [stage.record(group.key) or {} for group in groups]
    return EngineResult(
        dataset=stage.dataset,
        engine={"name": "spark", "mode": "dataframe", "spark_version": runner.version},
        files=tuple(day.file_rows() for day in days),
        rows={split: last - first for split, (first, last) in bounds.items()},
        positives={split: sum(r["positives"][split] for r in records) for split in SPLITS},
        cardinalities=cardinalities,
        columns=EncodedColumns(stage.columns, stage.float32),
    )


def _encode_groups(
    engine_job: EngineJob,
    runner: SparkRunner,
    groups: list[RowGroup],
    dictionaries: SqlDictionaries,
    places: "_Places",
) -> None:
    folder = engine_job.workspace.unit_dir("encode", places.stage.dataset.parent.name).resolve()
    done = [0, 0]
    with (
        engine_job.reporter.stage(
            "encode", sum(g.text_bytes for g in groups), lambda: (done[0], done[1])
        ),
        places.open(),
    ):
        for group in groups:
            before, first_row = done

            def update(fraction: float, before: int = before, group: RowGroup = group) -> None:
                done[0] = before + int(fraction * group.text_bytes)

            if places.stage.record(group.key) is None:
                encoded = folder / group.key
                if not encoded.exists():
                    table = _encoded(runner, group, dictionaries, engine_job.job.semantics)
                    write_parquet(runner, table, encoded, update)
                positives = places.write_group(group, encoded, first_row)
                places.stage.write_record(group.key, positives)
                shutil.rmtree(encoded)
            done[:] = [before + group.text_bytes, first_row + group.rows]


def _encoded(
    runner: SparkRunner,
    group: RowGroup,
    dictionaries: SqlDictionaries,
    semantics: CriteoSemantics,
) -> Any:
    """Returns the valid rows of a group with their features and ids."""
    session = runner.session
    session.read.parquet(uri(group.folder)).where("raw IS NULL").createOrReplaceTempView("rows")
    joins, ids, small = [], [], []
    for column, kept in enumerate(dictionaries.kept):
        if kept == 0:
            ids.append(f"0 AS id{column}")
            continue
        name = f"d{column}"
        session.read.parquet(uri(dictionaries.ids(column))).createOrReplaceTempView(name)
        key = category(column, semantics)
        joins.append(f"LEFT JOIN {name} ON rows.{key} = {name}.value")
        ids.append(f"coalesce({name}.id, 0) AS id{column}")
        if kept <= BROADCAST_CATEGORIES:
            small.append(name)
    hint = f"/*+ BROADCAST({', '.join(small)}) */" if small else ""
    columns = ["day", "block", "line", "label", *_numerical(semantics), *ids]
    table = session.sql(f"SELECT {hint} {', '.join(columns)} FROM rows {' '.join(joins)}")
    # With it, each of 26 small joins is planned by itself: three times as slow. A shuffle needs it:
    # all rows without a category meet in one task.
    shuffles = len(small) < len(joins)
    session.conf.set("spark.sql.adaptive.enabled", str(shuffles).lower())
    if shuffles:  # the order is lost
        order = ("day", "block", "line")
        table = table.repartitionByRange(*order).sortWithinPartitions(*order)
    return table


def _numerical(semantics: CriteoSemantics) -> list[str]:
    """Returns the SQL of the features: in float64, rounded to float32 once."""
    columns = []
    for i in range(NUM_NUMERICAL):
        raw = f"CAST(coalesce(i{i}, 0) AS BIGINT)"
        shifted = f"greatest({raw}, {semantics.numerical_min}L) + {semantics.numerical_offset}L"
        value = f"CAST(ln(CAST({shifted} AS DOUBLE)) AS FLOAT)"
        if semantics.numerical_missing == "output_zero":
            value = f"IF(i{i} IS NULL, CAST(0 AS FLOAT), {value})"
        columns.append(f"{value} AS n{i}")
    return columns


class _Places:
    """The columns of all splits, and where rows go in them."""

    def __init__(
        self,
        stage: EncodeStage,
        bounds: dict[Split, tuple[int, int]],
        cardinalities: tuple[int, ...],
    ) -> None:
        self.stage = stage
        self._bounds = bounds
        self._spec = FeatureSpec.criteo(cardinalities)
        self._writers: dict[Split, SplitBinaryWriter] = {}
        self._float32: dict[Split, int] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Opens the files of all splits, in their full size."""
        with contextlib.ExitStack() as stack:
            for split, (first, last) in self._bounds.items():
                writer = SplitBinaryWriter(self.stage.columns / split, self._spec, last - first)
                self._writers[split] = stack.enter_context(writer)
                if self.stage.float32 is not None:
                    self.stage.float32.mkdir(exist_ok=True)
                    fd = open_fd(self.stage.float32 / split, os.O_RDWR | os.O_CREAT)
                    self._float32[split] = stack.enter_context(fd)
            yield

    def write_group(self, group: RowGroup, encoded: Path, first_row: int) -> dict[Split, int]:
        """Writes encoded rows at their places; returns the clicks of each split.

        Args:
            group: whose rows.
            encoded: parquet of them, in any order (long runs in order are faster).
            first_row: global number of the first.
        """
        positives = dict.fromkeys(SPLITS, 0)
        written: list[tuple[int, int]] = []
        first_rows = list(itertools.accumulate((d.rows for d in group.days), initial=first_row))
        for part in sorted(encoded.glob("*.parquet")):
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches(_BATCH_ROWS):
                    rows = np.empty(len(batch), np.int64)
                    days = batch["day"].to_numpy()
                    blocks, lines = batch["block"].to_numpy(), batch["line"].to_numpy()
                    for day in np.unique(days):
                        here = days == day
                        numbers = group.days[day].row_numbers(blocks[here], lines[here])
                        rows[here] = numbers + first_rows[day]
                    written += self._write_rows(batch, rows, positives)
        _check_complete(written, first_row, first_rows[-1])
        return positives

    def _write_rows(
        self, batch: Any, rows: npt.NDArray[np.int64], positives: dict[Split, int]
    ) -> list[tuple[int, int]]:
        """Writes rows of the given global numbers; returns the ranges they make."""
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        columns = _columns(batch, order)
        cuts = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
        ranges = []
        for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            if start < stop:
                ranges.append((int(rows[start]), int(rows[stop - 1]) + 1))
                self._write(ranges[-1], columns[start:stop], positives)
        return ranges

    def _write(
        self, rows: tuple[int, int], columns: ClickColumns, positives: dict[Split, int]
    ) -> None:
        for split, (begin, end) in self._bounds.items():
            start, stop = max(rows[0], begin), min(rows[1], end)
            if start >= stop:
                continue
            part = columns[start - rows[0] : stop - rows[0]]
            self._writers[split].write(start - begin, part)
            if split in self._float32:
                values: npt.NDArray[Any] = part.numerical.astype("<f4", copy=False)
                offset = (start - begin) * NUM_NUMERICAL * 4
                write_at(self._float32[split], values, offset)
            positives[split] += int(part.label.sum())


def _columns(batch: Any, order: npt.NDArray[np.int64]) -> ClickColumns:
    def column(name: str) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = batch[name].to_numpy(zero_copy_only=False)[order]
        return values

    return ClickColumns(
        column("label").astype(np.bool_),
        np.stack([column(f"n{i}") for i in range(NUM_NUMERICAL)], axis=1),
        tuple(column(f"id{c}") for c in range(NUM_CATEGORICAL)),
    )


def _check_complete(written: list[tuple[int, int]], first: int, last: int) -> None:
    """Every row must have been written once."""
    expected = first
    for start, stop in [*sorted(written), (last, last)]:
        if start != expected:
            raise AssertionError(f"row {start} was encoded where row {expected} belongs")
        expected = stop
