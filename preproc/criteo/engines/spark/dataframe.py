# SPDX-License-Identifier: Apache-2.0
"""Dataframe mode: Spark SQL alone, no Python or native code on executors.

scan    text -> validated rows in parquet, a folder per unit (rows.py)
count   rows -> categories counted, ordered and numbered
encode  rows joined with the dictionaries -> ids in parquet, a folder per unit
write   ids of a unit -> its rows of the columns, by the driver

Every folder is named by a hash of all that it depends on, and exists only when it is complete.
"""

import itertools
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.criteo.columns import EncodeStage, SplitColumnsWriter, open_stage
from preproc.criteo.dictionaries import DICTIONARY_DTYPE, Dictionaries
from preproc.criteo.engine import EngineJob, EngineResult
from preproc.criteo.engines.spark.row_numbers import UnitRows, all_days
from preproc.criteo.engines.spark.rows import read_rows
from preproc.criteo.rules import (
    NUM_CATEGORICAL,
    NUM_NUMERICAL,
    SPLITS,
    CriteoSemantics,
    Split,
    split_bounds,
)
from preproc.files.workspace import atomic_file
from preproc.spark.runner import SparkRunner
from preproc.spark.sql import uri, write_parquet
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec

BROADCAST_CATEGORIES = 4 * 2**20
"""Largest dictionary that executors hold in memory, about 40 B per category; others shuffle."""

_BATCH_ROWS = 2**16
_FILE_BATCH_ROWS = 2**18


def run(engine_job: EngineJob, runner: SparkRunner) -> EngineResult:
    """Prepares a dataset with Spark SQL."""
    job, semantics = engine_job.job, engine_job.job.semantics
    runner = runner.for_sql(job.spark.spark_conf)
    units = read_rows(engine_job, runner)
    days = all_days(units)
    dictionaries = engine_job.dictionaries
    if dictionaries is None:
        dictionaries = count_categories(engine_job, runner, units)
    else:
        _write_ids(dictionaries)
    bounds = split_bounds([day.rows for day in days], semantics)
    stage = open_stage(engine_job, dictionaries, units=[unit.key for unit in units])
    spec = FeatureSpec.criteo(dictionaries.cardinalities)
    columns = SplitColumnsWriter(stage, spec, bounds)
    _encode_units(engine_job, runner, units, dictionaries, stage, columns)
    return stage.finish(
        engine={"name": "spark", "mode": "dataframe", "spark_version": runner.version},
        files=tuple(day.file_rows() for day in days),
        bounds=bounds,
        clicks=stage.clicks(unit.key for unit in units),
        dictionaries=dictionaries,
        rejected=(row for day in days for row in day.rejected),
    )


def _encode_units(
    engine_job: EngineJob,
    runner: SparkRunner,
    units: list[UnitRows],
    dictionaries: Dictionaries,
    stage: EncodeStage,
    columns: SplitColumnsWriter,
) -> None:
    folder = engine_job.workspace.unit_dir("encode", stage.key).resolve()
    done = [0, 0]
    with (
        engine_job.reporter.stage(
            "encode", sum(u.text_bytes for u in units), lambda: (done[0], done[1])
        ),
        columns.open(),
    ):
        for unit in units:
            before, first_row = done

            def update(fraction: float, before: int = before, unit: UnitRows = unit) -> None:
                done[0] = before + int(fraction * unit.text_bytes)

            if stage.record(unit.key) is None:
                encoded = folder / unit.key
                if not encoded.exists():
                    table = _encoded(runner, unit, dictionaries, engine_job.job.semantics)
                    write_parquet(runner, table, encoded, update)
                clicks = _write_unit(columns, unit, encoded, first_row)
                columns.finish_unit(unit.key, first_row, first_row + unit.rows, clicks)
                shutil.rmtree(encoded)
            done[:] = [before + unit.text_bytes, first_row + unit.rows]


def _encoded(
    runner: SparkRunner,
    unit: UnitRows,
    dictionaries: Dictionaries,
    semantics: CriteoSemantics,
) -> Any:
    """Returns a DataFrame of a unit's valid rows, with features and ids."""
    session = runner.session
    session.read.parquet(uri(unit.folder)).where("raw IS NULL").createOrReplaceTempView("rows")
    joins, ids, small = [], [], []
    for column, kept in enumerate(dictionaries.kept):
        if kept == 0:
            ids.append(f"0 AS id{column}")
            continue
        name = f"d{column}"
        session.read.parquet(uri(_ids_folder(dictionaries, column))).createOrReplaceTempView(name)
        key = category(column, semantics)
        joins.append(f"LEFT JOIN {name} ON {key} = {name}.value")
        ids.append(f"coalesce({name}.id, 0) AS id{column}")
        if kept <= BROADCAST_CATEGORIES:
            small.append(name)
    hint = f"/*+ BROADCAST({', '.join(small)}) */" if small else ""
    columns = ["day", "block", "line", "label", *_numerical(semantics), *ids]
    table = session.sql(f"SELECT {hint} {', '.join(columns)} FROM rows {' '.join(joins)}")
    # Adaptive execution plans each of 26 small joins on its own, which takes three times as long. A
    # shuffle needs it, because all rows with an empty category go to one task.
    shuffles = len(small) < len(joins)
    session.conf.set("spark.sql.adaptive.enabled", str(shuffles).lower())
    if shuffles:  # the order is lost
        order = ("day", "block", "line")
        table = table.repartitionByRange(*order).sortWithinPartitions(*order)
    return table


def _numerical(semantics: CriteoSemantics) -> list[str]:
    """Returns the SQL of the numerical features, float64 rounded to float32."""
    columns = []
    for i in range(NUM_NUMERICAL):
        raw = f"CAST(coalesce(i{i}, 0) AS BIGINT)"
        shifted = f"greatest({raw}, {semantics.numerical_min}L) + {semantics.numerical_offset}L"
        value = f"CAST(ln(CAST({shifted} AS DOUBLE)) AS FLOAT)"
        if semantics.numerical_missing == "output_zero":
            value = f"IF(i{i} IS NULL, CAST(0 AS FLOAT), {value})"
        columns.append(f"{value} AS n{i}")
    return columns


def _write_unit(
    columns: SplitColumnsWriter, unit: UnitRows, encoded: Path, first_row: int
) -> dict[Split, int]:
    """Writes the encoded rows of a unit; returns their clicks by split.

    Args:
        columns: an open writer.
        unit: the unit.
        encoded: parquet of the encoded rows, in any order (consecutive rows are faster).
        first_row: global number of the unit's first row.
    """
    clicks: Counter[Split] = Counter(dict.fromkeys(SPLITS, 0))
    written: list[tuple[int, int]] = []
    first_rows = list(itertools.accumulate((d.rows for d in unit.days), initial=first_row))
    for path in sorted(encoded.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                numbers = _row_numbers(unit, batch, first_rows)
                order = np.argsort(numbers, kind="stable")
                numbers, rows = numbers[order], _columns(batch, order, columns.num_categorical)
                cuts = (np.flatnonzero(np.diff(numbers) != 1) + 1).tolist()
                for start, stop in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
                    if start < stop:
                        first = int(numbers[start])
                        written.append((first, first + stop - start))
                        clicks.update(columns.write(first, rows[start:stop]))
    _check_complete(written, first_row, first_rows[-1])
    return dict(clicks)


def _row_numbers(unit: UnitRows, batch: Any, first_rows: list[int]) -> npt.NDArray[np.int64]:
    """Returns the global row numbers of a batch.

    Args:
        unit: the unit.
        batch: PyArrow batch of its encoded rows.
        first_rows: global number of the first row of each of its files.
    """
    rows = np.empty(len(batch), np.int64)
    days = batch["day"].to_numpy()
    blocks, lines = batch["block"].to_numpy(), batch["line"].to_numpy()
    for day in np.unique(days):
        here = days == day
        rows[here] = unit.days[day].row_numbers(blocks[here], lines[here]) + first_rows[day]
    return rows


def _columns(batch: Any, order: npt.NDArray[np.int64], num_categorical: int) -> ClickColumns:
    def column(name: str) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = batch[name].to_numpy(zero_copy_only=False)[order]
        return values

    return ClickColumns(
        column("label").astype(np.bool_),
        np.stack([column(f"n{i}") for i in range(NUM_NUMERICAL)], axis=1),
        tuple(column(f"id{c}") for c in range(num_categorical)),
    )


def _check_complete(written: list[tuple[int, int]], first: int, last: int) -> None:
    """Asserts that every row was written once."""
    expected = first
    for start, stop in [*sorted(written), (last, last)]:
        if start != expected:
            raise AssertionError(f"row {start} was encoded where row {expected} belongs")
        expected = stop


def _ids_folder(dictionaries: Dictionaries, column: int) -> Path:
    """Returns the parquet folder of a column's (value, id) pairs.

    It does not exist if no category is kept.
    """
    return dictionaries.folder / "ids" / f"feature={column}"


def category(column: int, semantics: CriteoSemantics) -> str:
    """Returns the SQL of a column's categories, or of a number's bins."""
    if column >= NUM_CATEGORICAL:
        raised = (
            f"greatest(CAST(i{column - NUM_CATEGORICAL} AS BIGINT), {semantics.numerical_min}L)"
        )
        # SQL's greatest() skips NULL.
        return (
            f"CASE WHEN i{column - NUM_CATEGORICAL} IS NULL THEN NULL"
            f" WHEN {raised} > 2 THEN CAST(floor(pow(ln(CAST({raised} AS DOUBLE)), 2)) AS BIGINT)"
            f" + 2 ELSE {raised} & 4294967295L END"
        )
    modulus = semantics.category_modulus
    return f"c{column}" if modulus is None else f"c{column} % {modulus}L"


def count_categories(
    engine_job: EngineJob, runner: SparkRunner, units: list[UnitRows]
) -> Dictionaries:
    """Makes the dictionaries, unless they are complete."""
    semantics = engine_job.job.semantics
    rows = sum(unit.rows for unit in units)
    if semantics.dictionary_days == "train":
        rows = split_bounds([day.rows for day in all_days(units)], semantics)["train"][1]
    limit = max(semantics.frequency_limit, 1)
    folder = engine_job.work_folder(
        "dictionaries", units=[unit.key for unit in units], counted=rows, frequency_limit=limit
    ).resolve()
    dictionaries = Dictionaries(folder, folder.name, semantics.num_categorical)
    if not dictionaries.missing():
        return dictionaries
    total = sum(unit.text_bytes for unit in units)
    done = [0]
    with engine_job.reporter.stage("count", total, lambda: (done[0], 0)):
        ids = folder / "ids"
        if not ids.exists():
            table = _numbered(runner, _first_rows(runner, units, rows), semantics, limit)
            write_parquet(
                runner,
                table,
                ids,
                lambda fraction: done.__setitem__(0, int(fraction * total)),
                by="feature",
            )
        for column in range(dictionaries.num_columns):
            _write_dictionary(dictionaries, column)
        done[0] = total
    return dictionaries


def _first_rows(runner: SparkRunner, units: list[UnitRows], rows: int) -> Any:
    """Returns a DataFrame of the first `rows` valid rows."""
    read = runner.session.read
    whole: list[str] = []
    cut: Any = None
    for unit in units:
        if rows >= unit.rows:
            whole.append(uri(unit.folder))
        elif cut is None:  # also for 0 rows: a table needs columns
            cut = read.parquet(uri(unit.folder)).where(unit.first_rows_condition(rows))
        rows = max(rows - unit.rows, 0)
    table: Any = read.parquet(*whole) if whole else cut
    if whole and cut is not None:
        table = table.union(cut)
    return table.where("raw IS NULL")


def _numbered(runner: SparkRunner, rows: Any, semantics: CriteoSemantics, limit: int) -> Any:
    """Returns a DataFrame of (feature, value, id) of the categories kept."""
    columns = semantics.num_categorical
    pairs = ", ".join(f"{c}, {category(c, semantics)}" for c in range(columns))
    rows.selectExpr(f"stack({columns}, {pairs}) AS (feature, value)").where(
        "value IS NOT NULL"
    ).createOrReplaceTempView("seen")
    return runner.session.sql(
        "SELECT feature, value, CAST(row_number() OVER (PARTITION BY feature"
        " ORDER BY seen DESC, value ASC) AS INT) AS id"
        " FROM (SELECT feature, value, count(*) AS seen FROM seen GROUP BY feature, value)"
        f" WHERE seen >= {limit}"
    )


def _write_ids(dictionaries: Dictionaries) -> None:
    """Writes (value, id) pairs of given dictionaries, as counting would."""
    for column, categories in enumerate(dictionaries.load()):
        folder = _ids_folder(dictionaries, column)
        if len(categories) == 0 or (folder / "pairs.parquet").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        ids = np.arange(1, len(categories) + 1, dtype=np.int32)
        pairs = pa.table({"value": categories.astype(np.int64), "id": ids})
        with atomic_file(folder / "pairs.parquet") as fd, os.fdopen(os.dup(fd), "wb") as file:
            pq.write_table(pairs, file)


def _write_dictionary(dictionaries: Dictionaries, column: int) -> None:
    paths = sorted(_ids_folder(dictionaries, column).glob("*.parquet"))
    files = [pq.ParquetFile(path) for path in paths]
    values = np.zeros(sum(f.metadata.num_rows for f in files), DICTIONARY_DTYPE)
    for file in files:
        for batch in file.iter_batches(_FILE_BATCH_ROWS, columns=["value", "id"]):
            values[batch["id"].to_numpy() - 1] = batch["value"].to_numpy()
        file.close()
    dictionaries.save(column, values)
