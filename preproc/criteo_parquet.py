# SPDX-License-Identifier: Apache-2.0
"""Encoded columns to parquet parts, a row group at a time so that memory stays bounded.

PyArrow is imported where parquet was asked for: it takes 40 MiB and a third of a second.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from dataspec import parquet
from dataspec.click_columns import ClickColumns
from dataspec.feature_spec import FeatureSpec
from dataspec.split_binary import SplitBinaryReader
from preproc.criteo_engine import EngineJob, EngineResult
from preproc.criteo_schema import NUM_COLUMNS, NUM_NUMERICAL, Split
from preproc.native.binding import Progress
from preproc.native_units import run_units, share_budget

ROW_BYTES = 4 * NUM_COLUMNS
"""Of a row in memory: every column is 32 bits wide."""

PART_BUFFER_BYTES = 112 * 2**20
"""Memory while one part is written (a row group and the writer's buffers), measured."""


def part_paths(dataset: Path, split: Split, rows: int) -> list[Path]:
    """Returns the part files of a split; an empty split has one empty part."""
    folder = dataset / parquet.FOLDER / split
    count = max(1, -(-rows // parquet.PART_ROWS))
    return [folder / parquet.part_name(i) for i in range(count)]


def write_part(path: Path, spec: FeatureSpec, groups: Iterable[ClickColumns]) -> None:
    """Writes one part within a bounded memory.

    Args:
        path: the part file.
        spec: the columns.
        groups: its row groups, numerical features as float32.
    """
    # The default pool keeps what it freed, beyond any limit: 35 MiB more, and no faster.
    pa.set_memory_pool(pa.system_memory_pool())
    parquet.write_parquet_part(path, spec, groups)


def group_ranges(rows: int, index: int) -> list[tuple[int, int]]:
    """Returns the row ranges of the row groups of one part of a split."""
    first = index * parquet.PART_ROWS
    last = min(first + parquet.PART_ROWS, rows)
    step = parquet.ROW_GROUP_ROWS
    return [(start, min(start + step, last)) for start in range(first, last, step)]


def read_groups(
    columns: Path, float32: Path, split: Split, spec: FeatureSpec, index: int
) -> Iterator[ClickColumns]:
    """Yields the row groups of a part from encoded columns.

    Args:
        columns: folder with the split-binary columns.
        float32: the numerical features of the split, [rows, 13] float32.
        split: which one.
        spec: the columns.
        index: number of the part.
    """
    reader = SplitBinaryReader(columns, split, spec, access="memmap")
    try:
        for start, stop in group_ranges(reader.num_rows, index):
            narrow = reader.read(start, stop)
            shape = (stop - start, NUM_NUMERICAL)
            offset = start * NUM_NUMERICAL * 4
            numerical = np.memmap(float32, dtype="<f4", mode="r", offset=offset, shape=shape)
            yield ClickColumns(narrow.label, numerical, narrow.categorical)
    finally:
        reader.close()


def write_splits(engine_job: EngineJob, result: EngineResult) -> None:
    """Writes the parquet parts that a staged dataset lacks, from its columns.

    Args:
        engine_job: says how much memory and how many threads to use.
        result: the dataset, its rows, and columns with float32 features.
    """
    rows, columns = result.rows, result.columns
    assert columns is not None
    assert columns.float32 is not None
    folder, float32 = columns.folder, columns.float32
    spec = FeatureSpec.criteo(result.cardinalities)
    parts = [
        (path, split, index)
        for split in rows
        for index, path in enumerate(part_paths(result.dataset, split, rows[split]))
    ]
    missing = [p for p in parts if not p[0].exists()]
    progress = Progress()
    progress.rows = sum(rows.values()) - sum(_part_rows(rows[s], i) for _, s, i in missing)

    def work(part: tuple[Path, Split, int]) -> int:
        path, split, index = part
        write_part(path, spec, read_groups(folder, float32 / split, split, spec, index))
        return _part_rows(rows[split], index)

    job = engine_job.job
    threads, _ = share_budget(job.memory_limit, job.threads, PART_BUFFER_BYTES)
    total = sum(rows.values()) * ROW_BYTES
    with engine_job.reporter.stage(
        "parquet", total, lambda: (progress.rows * ROW_BYTES, progress.rows)
    ):
        for _, written in run_units(missing, work, threads, progress):
            progress.rows += written


def _part_rows(rows: int, index: int) -> int:
    return sum(last - first for first, last in group_ranges(rows, index))
