# SPDX-License-Identifier: Apache-2.0
"""Encoded columns to parquet parts, a row group at a time so that memory stays bounded.

PyArrow is imported where parquet was asked for: it takes 40 MiB and a third of a second.
"""

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
"""Of a row in memory: every column is 32 bits wide."""

PART_BUFFER_BYTES = 112 * 2**20
"""Memory while one part is written (a row group and the writer's buffers), measured."""


def split_folder(dataset: Path, split: Split) -> Path:
    """Returns the folder of the parts of a split."""
    return dataset / parquet.FOLDER / split


def part_paths(dataset: Path, split: Split, rows: int) -> list[Path]:
    """Returns the part files of a split; an empty split has one empty part."""
    folder = split_folder(dataset, split)
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


def write_splits(engine_job: EngineJob, result: EngineResult) -> None:
    """Writes the parquet parts that a staged dataset lacks, from its columns.

    Args:
        engine_job: says how much memory and how many threads to use.
        result: the dataset, its rows, and columns with float32 features.
    """
    job, rows = engine_job.job, result.rows
    spec = dataset_spec(job.layout, result.cardinalities)
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
        pieces = read_rows(result.columns, split, spec, group_ranges(rows[split], index))
        write_part(path, spec, (group for _, group in pieces))
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
