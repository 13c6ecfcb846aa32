# SPDX-License-Identifier: Apache-2.0
"""Writes encoded columns as parquet, one row group at a time."""

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from preproc.clicks.columns import ColumnsReader
from preproc.clicks.engine import EngineJob, EngineResult
from preproc.clicks.layouts.torchrec import ROW_BYTES, dataset_spec
from preproc.clicks.rules import Split
from preproc.files.budget import run_units, share_budget
from preproc.files.progress import Progress
from recsys.data import parquet

PART_BUFFER_BYTES = 112 * 2**20
"""Memory to write one part file: a row group and the writer's buffers, measured."""


class _PartFile(NamedTuple):
    """A part file, and its rows [first, last) of a split."""

    path: Path
    split: Split
    first: int
    last: int


def write_splits(engine_job: EngineJob, result: EngineResult) -> None:
    """Writes the part files that a staged dataset lacks."""
    # The default pool keeps freed memory, 35 MiB beyond the limit, and is no faster.
    pa.set_memory_pool(pa.system_memory_pool())
    job, rows = engine_job.job, result.rows
    spec = dataset_spec(job, result.cardinalities)
    folder = result.dataset / parquet.FOLDER
    missing = []
    for split, count in rows.items():
        # An empty split has one part too.
        for number, first in enumerate(range(0, max(count, 1), parquet.PART_ROWS)):
            path = folder / split / parquet.part_name(number)
            if not path.exists():
                missing.append(_PartFile(path, split, first, min(first + parquet.PART_ROWS, count)))
    progress = Progress()
    progress.rows = sum(rows.values()) - sum(file.last - file.first for file in missing)

    def work(file: _PartFile) -> None:
        step = parquet.ROW_GROUP_ROWS
        ranges = [(r, min(r + step, file.last)) for r in range(file.first, file.last, step)]
        groups = reader.read(file.split, ranges)
        parquet.write_parquet_part(file.path, spec, (group for _, group in groups))

    threads, _ = share_budget(job.memory_limit, job.threads, PART_BUFFER_BYTES)
    total = sum(rows.values()) * ROW_BYTES
    with (
        ColumnsReader(result.columns, spec) as reader,
        engine_job.reporter.stage(
            "parquet", total, lambda: (progress.rows * ROW_BYTES, progress.rows)
        ),
    ):
        for file, _ in run_units(missing, work, threads, progress):
            progress.rows += file.last - file.first
    if job.layout == "torchrec":
        for split in rows:
            parquet.write_metadata_file(folder / split)
