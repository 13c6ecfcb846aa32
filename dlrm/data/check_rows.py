# SPDX-License-Identifier: Apache-2.0
"""Checks every row that a run will read, before its first step."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dlrm.data.opened import OpenedDataset
from dlrm.data.sources import RowSource, StreamedRows
from recsys.data.errors import DatasetError
from recsys.data.manifest import MANIFEST_FILE
from recsys.train.processes import Processes

_BLOCK_ROWS = 1 << 18
_SILENT_S = 3.0
"""Seconds between lines of progress."""


def check_rows(
    dataset: OpenedDataset,
    split: str,
    most_rows: int | None,
    processes: Processes,
    print_line: Callable[[str], None],
    *,
    check_ids: bool,
) -> int:
    """Refuses a split with values that a reader would refuse later.

    Rows are not read where the manifest vouches for the files: they have the sizes that it records
    and were not written after it, or have its checksums. Otherwise processes divide the rows.

    Args:
        dataset: dataset of the run.
        split: `train`, `validation` or `test`.
        most_rows: first rows to check; None checks all.
        processes: processes of the run; every one must call it.
        print_line: prints the progress, where it takes longer than seconds.
        check_ids: refuse ids outside their tables.

    Returns:
        The rows of the split.

    Raises:
        DatasetError: names file, row and feature.
    """
    problem, num_rows = "", 0
    try:
        source = dataset.rows(split, check_ids=check_ids)
        if dataset.manifest is not None:
            newer = source.files[processes.rank :: processes.world_size]
            dataset.manifest.check_newer(dataset.root, newer)
        num_rows = source.num_rows
        if not num_rows:
            raise DatasetError(
                f"{source.files[0].parent}: no rows for the {split} split; prepare it again"
            )
        if not _manifest_vouches(dataset, source.files):
            rows = num_rows if most_rows is None else min(most_rows, num_rows)
            rank, ranks = processes.rank, processes.world_size
            first, after = rank * rows // ranks, (rank + 1) * rows // ranks
            _read(source, split, first, after, print_line)
    except DatasetError as error:
        problem = str(error)
    problems = [p for p in processes.gather_values(problem) if p]
    if problems:
        raise DatasetError(problems[0])
    return num_rows


def _manifest_vouches(dataset: OpenedDataset, files: Sequence[Path]) -> bool:
    """Returns True if it lists the files, which then are as they were written."""
    root, manifest = dataset.root, dataset.manifest
    if manifest is None:
        return False
    listed = {root / name for name in manifest.files}
    if not listed.issuperset(files):
        return False
    checked, tables = manifest.cardinalities, dataset.spec.table_sizes
    return len(checked) == len(tables) and all(map(int.__le__, checked, tables))


def _read(
    source: RowSource, split: str, first: int, after: int, print_line: Callable[[str], None]
) -> None:
    done, printed = 0, time.monotonic()
    for rows in _blocks(source, first, after):
        done += rows
        if time.monotonic() - printed >= _SILENT_S:
            printed = time.monotonic()
            print_line(
                f"Checking the rows of the {split} split, for which no {MANIFEST_FILE} vouches: "
                f"{min(done / (after - first), 1):.0%}"
            )


def _blocks(source: RowSource, first: int, after: int) -> Iterator[int]:
    """Yields the number of rows of each block that was read."""
    if not isinstance(source, StreamedRows):
        for start in range(first, after, _BLOCK_ROWS):
            yield len(source.read(start, min(start + _BLOCK_ROWS, after)))
        return
    blocks = source.stream(first)
    while first < after:
        rows = len(next(blocks))
        first += rows
        yield rows
