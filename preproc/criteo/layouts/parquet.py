# SPDX-License-Identifier: Apache-2.0
"""Writes encoded columns as parquet, one row group at a time."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from preproc.criteo.columns import read_rows
from preproc.criteo.engine import EngineJob, EngineResult
from preproc.criteo.layouts.torchrec import dataset_spec
from preproc.criteo.rules import NUM_COLUMNS, Split
from preproc.files.budget import run_units, share_budget
from preproc.files.progress import Progress
from recsys.data import parquet
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec

ROW_BYTES = 4 * NUM_COLUMNS
"""Bytes of a row in memory: every column is 32 bits wide."""

PART_BUFFER_BYTES = 112 * 2**20
"""Memory to write one part file: a row group and the writer's buffers, measured."""


def split_folder(dataset: Path, split: Split) -> Path:
    """Returns the folder with the part files of a split."""
    return dataset / parquet.FOLDER / split


def part_paths(dataset: Path, split: Split, rows: int) -> list[Path]:
    """Returns the part files of a split, at least one."""
    folder = split_folder(dataset, split)
    count = max(1, -(-rows // parquet.PART_ROWS))
    return [folder / parquet.part_name(i) for i in range(count)]


def write_part(path: Path, spec: FeatureSpec, groups: Iterable[ClickColumns]) -> None:
    """Writes one part file within a bounded memory.

    Args:
        path: the part file.
        spec: names and dtypes of the columns.
        groups: its row groups, with float32 numerical features.
    """
    # The default pool keeps freed memory, 35 MiB beyond the limit, and is no faster.
    pa.set_memory_pool(pa.system_memory_pool())
    parquet.write_parquet_part(path, spec, groups)


def group_ranges(rows: int, index: int) -> list[tuple[int, int]]:
    """Returns first row and end of each row group of a part.

    Args:
        rows: rows of the split.
        index: number of the part file, from 0.
    """
    first = index * parquet.PART_ROWS
    last = min(first + parquet.PART_ROWS, rows)
    step = parquet.ROW_GROUP_ROWS
    return [(start, min(start + step, last)) for start in range(first, last, step)]


def write_splits(engine_job: EngineJob, result: EngineResult) -> None:
    """Writes the part files that a staged dataset lacks.

    Args:
        engine_job: gives memory limit, threads and progress.
        result: the dataset, its rows, and columns with float32 features.
    """
    job, rows = engine_job.job, result.rows
    spec = dataset_spec(job.layout, result.cardinalities)
    parts = [
        (path, split, index)
        for split in rows
        for index, path in enumerate(part_paths(result.dataset, split, rows[split]))
    ]
    missing = [(path, split, index) for path, split, index in parts if not path.exists()]
    progress = Progress()
    progress.rows = sum(rows.values()) - sum(_part_rows(rows[s], i) for _, s, i in missing)

    def work(unit: tuple[Path, Split, int]) -> int:
        path, split, index = unit
        groups = read_rows(result.columns, split, spec, group_ranges(rows[split], index))
        write_part(path, spec, (group for _, group in groups))
        return _part_rows(rows[split], index)

    threads, _ = share_budget(job.memory_limit, job.threads, PART_BUFFER_BYTES)
    total = sum(rows.values()) * ROW_BYTES
    with engine_job.reporter.stage(
        "parquet", total, lambda: (progress.rows * ROW_BYTES, progress.rows)
    ):
        for _, written in run_units(missing, work, threads, progress):
            progress.rows += written
    if job.layout == "torchrec":
        for split in rows:
            parquet.write_metadata_file(split_folder(result.dataset, split))


def _part_rows(rows: int, index: int) -> int:
    return sum(last - first for first, last in group_ranges(rows, index))
