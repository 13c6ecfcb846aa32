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
from preproc.criteo_schema import NUM_COLUMNS, NUM_NUMERICAL, Split

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
