# SPDX-License-Identifier: Apache-2.0
"""Dataframe mode: Spark SQL alone does the work, no Python and no native code on the executors.

scan    text -> validated rows, a parquet folder per day              (rows)
count   rows -> categories counted, ordered and numbered              (here)
encode  rows joined with the dictionaries -> ids, a folder per group  (here)
join    the ids of a group -> their place in the columns, by the driver (here)

Every folder stands under a key of what it depends on, and has its name only when it is complete.
"""

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from preproc.criteo.columns import EncodeStage, SplitColumnsWriter, open_stage
from preproc.criteo.dictionaries import DICTIONARY_DTYPE, Dictionaries
from preproc.criteo.engine import EngineJob, EngineResult
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
from preproc.files.quarantine import QUARANTINE_FILE, write_quarantine
from preproc.files.workspace import settings_key
from preproc.spark.runner import SparkRunner
from preproc.spark.sql import uri, write_parquet
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec

BROADCAST_CATEGORIES = 4 * 2**20
"""A larger dictionary is joined by a shuffle: every executor would hold it, about 40 B each."""

_BATCH_ROWS = 2**16
_FILE_BATCH_ROWS = 2**18


def run(engine_job: EngineJob, runner: SparkRunner) -> EngineResult:
    """Prepares a dataset with Spark SQL."""
    job, semantics = engine_job.job, engine_job.job.semantics
    runner = runner.for_sql(job.spark.spark_conf)
    groups = read_rows(engine_job, runner)
    days = all_days(groups)
    dictionaries = count_categories(engine_job, runner, groups)
    bounds = split_bounds([day.rows for day in days], semantics)
    stage = open_stage(engine_job, {"dictionaries": dictionaries.key}, bounds)
    spec = FeatureSpec.criteo(dictionaries.cardinalities)
    columns = SplitColumnsWriter(stage, spec, bounds)
    _encode_groups(engine_job, runner, groups, dictionaries, stage, columns)
    dictionaries.copy_to(stage.dataset)
    bad = [row for day in days for row in day.bad]
    if bad:
        write_quarantine(stage.dataset / QUARANTINE_FILE, bad)
    return EngineResult(
        dataset=stage.dataset,
        engine={"name": "spark", "mode": "dataframe", "spark_version": runner.version},
        files=tuple(day.file_rows() for day in days),
        rows={split: last - first for split, (first, last) in bounds.items()},
        positives=stage.clicks(group.key for group in groups),
        cardinalities=dictionaries.cardinalities,
        columns=stage.encoded(),
    )


def _encode_groups(
    engine_job: EngineJob,
    runner: SparkRunner,
    groups: list[RowGroup],
    dictionaries: Dictionaries,
    stage: EncodeStage,
    columns: SplitColumnsWriter,
) -> None:
    folder = engine_job.workspace.unit_dir("encode", stage.key).resolve()
    done = [0, 0]
    with (
        engine_job.reporter.stage(
            "encode", sum(g.text_bytes for g in groups), lambda: (done[0], done[1])
        ),
        columns.open(),
    ):
        for group in groups:
            before, first_row = done

            def update(fraction: float, before: int = before, group: RowGroup = group) -> None:
                done[0] = before + int(fraction * group.text_bytes)

            if stage.record(group.key) is None:
                encoded = folder / group.key
                if not encoded.exists():
                    table = _encoded(runner, group, dictionaries, engine_job.job.semantics)
                    write_parquet(runner, table, encoded, update)
                positives = _write_group(columns, group, encoded, first_row)
                stage.write_record(group.key, positives)
                shutil.rmtree(encoded)
            done[:] = [before + group.text_bytes, first_row + group.rows]


def _encoded(
    runner: SparkRunner,
    group: RowGroup,
    dictionaries: Dictionaries,
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
        session.read.parquet(uri(_ids_folder(dictionaries, column))).createOrReplaceTempView(name)
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


def _write_group(
    columns: SplitColumnsWriter, group: RowGroup, encoded: Path, first_row: int
) -> dict[Split, int]:
    """Writes encoded rows under their global numbers; returns the clicks of each split.

    Args:
        columns: open.
        group: whose rows.
        encoded: parquet of them, in any order (long runs in order are faster).
        first_row: global number of the first.
    """
    clicks: Counter[Split] = Counter(dict.fromkeys(SPLITS, 0))
    written: list[tuple[int, int]] = []
    first_rows = list(itertools.accumulate((d.rows for d in group.days), initial=first_row))
    for path in sorted(encoded.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                numbers = _row_numbers(group, batch, first_rows)
                order = np.argsort(numbers, kind="stable")
                numbers, rows = numbers[order], _columns(batch, order)
                cuts = (np.flatnonzero(np.diff(numbers) != 1) + 1).tolist()
                for start, stop in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
                    if start < stop:
                        first = int(numbers[start])
                        written.append((first, first + stop - start))
                        clicks.update(columns.write(first, rows[start:stop]))
    _check_complete(written, first_row, first_rows[-1])
    return dict(clicks)


def _row_numbers(group: RowGroup, batch: Any, first_rows: list[int]) -> npt.NDArray[np.int64]:
    """Returns the global numbers of the rows of a batch, from the first row of each day."""
    rows = np.empty(len(batch), np.int64)
    days = batch["day"].to_numpy()
    blocks, lines = batch["block"].to_numpy(), batch["line"].to_numpy()
    for day in np.unique(days):
        here = days == day
        rows[here] = group.days[day].row_numbers(blocks[here], lines[here]) + first_rows[day]
    return rows


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


def _ids_folder(dictionaries: Dictionaries, column: int) -> Path:
    """Returns the parquet folder of a column's (value, id) pairs; not there if none is kept."""
    return dictionaries.folder / "ids" / f"feature={column}"


def category(column: int, semantics: CriteoSemantics) -> str:
    """Returns the SQL of what is counted and looked up in a column."""
    modulus = semantics.category_modulus
    return f"c{column}" if modulus is None else f"c{column} % {modulus}L"


def count_categories(
    engine_job: EngineJob, runner: SparkRunner, groups: list[RowGroup]
) -> Dictionaries:
    """Counts the categories of the rows that dictionaries are made from, unless that was done."""
    semantics = engine_job.job.semantics
    rows = sum(group.rows for group in groups)
    if semantics.dictionary_days == "train":
        rows = split_bounds([day.rows for day in all_days(groups)], semantics)["train"][1]
    limit = max(semantics.frequency_limit, 1)
    key = settings_key(
        {
            "groups": [group.key for group in groups],
            "rows": rows,
            "modulus": semantics.category_modulus,
            "frequency_limit": limit,
        }
    )
    folder = engine_job.workspace.unit_dir("dictionaries", key).resolve()
    dictionaries = Dictionaries(folder, key)
    if not dictionaries.missing():
        return dictionaries
    total = sum(group.text_bytes for group in groups)
    done = [0]
    with engine_job.reporter.stage("count", total, lambda: (done[0], 0)):
        ids = folder / "ids"
        if not ids.exists():
            table = _numbered(runner, _counted_rows(runner, groups, rows), semantics, limit)
            write_parquet(
                runner,
                table,
                ids,
                lambda fraction: done.__setitem__(0, int(fraction * total)),
                by="feature",
            )
        for column in range(NUM_CATEGORICAL):
            _write_dictionary(dictionaries, column)
        done[0] = total
    return dictionaries


def _counted_rows(runner: SparkRunner, groups: list[RowGroup], rows: int) -> Any:
    """Returns the first `rows` valid rows of all groups."""
    read = runner.session.read
    whole: list[str] = []
    cut: Any = None
    for group in groups:
        if rows >= group.rows:
            whole.append(uri(group.folder))
        elif cut is None:  # even for no rows: a table has to have columns
            cut = read.parquet(uri(group.folder)).where(group.first_rows_condition(rows))
        rows = max(rows - group.rows, 0)
    table: Any = read.parquet(*whole) if whole else cut
    if whole and cut is not None:
        table = table.union(cut)
    return table.where("raw IS NULL")


def _numbered(runner: SparkRunner, rows: Any, semantics: CriteoSemantics, limit: int) -> Any:
    pairs = ", ".join(f"{c}, {category(c, semantics)}" for c in range(NUM_CATEGORICAL))
    rows.selectExpr(f"stack({NUM_CATEGORICAL}, {pairs}) AS (feature, value)").where(
        "value IS NOT NULL"
    ).createOrReplaceTempView("seen")
    return runner.session.sql(
        "SELECT feature, value, CAST(row_number() OVER (PARTITION BY feature"
        " ORDER BY seen DESC, value ASC) AS INT) AS id"
        " FROM (SELECT feature, value, count(*) AS seen FROM seen GROUP BY feature, value)"
        f" WHERE seen >= {limit}"
    )


def _write_dictionary(dictionaries: Dictionaries, column: int) -> None:
    parts = sorted(_ids_folder(dictionaries, column).glob("*.parquet"))
    files = [pq.ParquetFile(part) for part in parts]
    values = np.zeros(sum(f.metadata.num_rows for f in files), DICTIONARY_DTYPE)
    for file in files:
        for batch in file.iter_batches(_FILE_BATCH_ROWS, columns=["value", "id"]):
            values[batch["id"].to_numpy() - 1] = batch["value"].to_numpy()
        file.close()
    dictionaries.save(column, values)
