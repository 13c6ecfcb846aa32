# SPDX-License-Identifier: Apache-2.0
"""Dataframe mode, second stage: categories counted, ordered and numbered by Spark SQL."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from preproc.criteo.engine import DICTIONARY_DTYPE, EngineJob
from preproc.criteo.engines.spark.row_numbers import RowGroup, all_days
from preproc.criteo.rules import NUM_CATEGORICAL, CriteoSemantics, split_bounds
from preproc.files.workspace import atomic_file, settings_key
from preproc.spark.runner import SparkRunner
from preproc.spark.sql import uri, write_parquet

_FILE_BATCH_ROWS = 2**18


@dataclasses.dataclass(frozen=True, slots=True)
class SqlDictionaries:
    """Dictionaries as tables to join with.

    Attributes:
        key: names everything they depend on.
        folder: has ids/feature=C, parquet of (value, id), and cat_C.bin of each column.
    """

    key: str
    folder: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        """One file per column: uint32 categories in id order."""
        return tuple(self.folder / f"cat_{c}.bin" for c in range(NUM_CATEGORICAL))

    @property
    def kept(self) -> tuple[int, ...]:
        """Number of categories of each column."""
        return tuple(p.stat().st_size // DICTIONARY_DTYPE.itemsize for p in self.paths)

    def ids(self, column: int) -> Path:
        """Folder with the (value, id) pairs of a column; not there if none is kept."""
        return self.folder / "ids" / f"feature={column}"


def category(column: int, semantics: CriteoSemantics) -> str:
    """Returns the SQL of what is counted and looked up in a column."""
    modulus = semantics.category_modulus
    return f"c{column}" if modulus is None else f"c{column} % {modulus}L"


def count_categories(
    engine_job: EngineJob, runner: SparkRunner, groups: list[RowGroup]
) -> SqlDictionaries:
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
    dictionaries = SqlDictionaries(key, folder)
    if all(path.exists() for path in dictionaries.paths):
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


def _write_dictionary(dictionaries: SqlDictionaries, column: int) -> None:
    parts = sorted(dictionaries.ids(column).glob("*.parquet"))
    files = [pq.ParquetFile(part) for part in parts]
    values = np.zeros(sum(f.metadata.num_rows for f in files), DICTIONARY_DTYPE)
    for file in files:
        for batch in file.iter_batches(_FILE_BATCH_ROWS, columns=["value", "id"]):
            values[batch["id"].to_numpy() - 1] = batch["value"].to_numpy()
        file.close()
    with atomic_file(dictionaries.paths[column]) as fd, os.fdopen(os.dup(fd), "wb") as out:
        values.tofile(out)


def copy_dictionaries(dictionaries: SqlDictionaries, targets: list[Path]) -> None:
    """Copies the dictionary files of all columns."""
    for path, target in zip(dictionaries.paths, targets, strict=True):
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
