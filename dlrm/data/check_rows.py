# SPDX-License-Identifier: Apache-2.0
"""Checks every row that a run will read, before its first step."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dlrm.data.opened import OpenedDataset
from dlrm.data.sources import StreamedRows
from recsys.data.errors import DatasetError
from recsys.data.manifest import MANIFEST_FILE, Manifest
from recsys.data.row_reader import RowReader
from recsys.train.processes import Processes

_BLOCK_ROWS = 1 << 18
_SILENT_S = 3.0
"""Seconds between progress lines."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedSplit:
    """Counts of a split that passed the check.

    Attributes:
        num_rows: rows of the split.
        num_checked: rows that the run reads.
        positives: clicks among the rows that the run reads.
    """

    num_rows: int
    num_checked: int
    positives: int

    @property
    def only_class(self) -> str:
        """`name_only_class` of the rows that the run reads."""
        return name_only_class(self.positives / self.num_checked)


def name_only_class(click_rate: float) -> str:
    """Describes the class of all rows if there is only one; otherwise returns ''."""
    return {0.0: "no clicks", 1.0: "only clicks"}.get(click_rate, "")


def check_rows(
    dataset: OpenedDataset,
    split: str,
    most_rows: int | None,
    processes: Processes,
    print_line: Callable[[str], None],
    *,
    check_ids: bool,
) -> CheckedSplit:
    """Refuses a split with values that a reader would refuse later.

    Rows are not read if the manifest vouches for the files: they have the sizes that it records and
    were not written after it, or they have the checksums that it records. Otherwise, the processes
    divide the rows among them.

    Args:
        dataset: dataset of the run.
        split: `train`, `validation` or `test`.
        most_rows: number of rows to check, from the first; None checks all.
        processes: processes of the run; each must call this function.
        print_line: prints progress if the check takes more than a few seconds.
        check_ids: whether to refuse ids outside their tables.

    Raises:
        DatasetError: a value is invalid; the message names file, row and feature.
    """
    problem, num_rows, checked, positives = "", 0, 0, 0
    try:
        source, manifest = dataset.rows(split, check_ids=check_ids), dataset.manifest
        if manifest is not None:
            newer = source.files[processes.rank :: processes.world_size]
            manifest.check_newer(dataset.root, newer)
        num_rows = source.num_rows
        if not num_rows:
            raise DatasetError(
                f"{source.files[0].parent}: no rows for the {split} split; prepare it again",
                path=source.files[0].parent,
            )
        rank, ranks = processes.rank, processes.world_size
        if manifest is not None and _vouches(manifest, dataset, source.files):
            checked = num_rows
            positives = manifest.positives.get(split, -1) if rank == 0 else 0
        else:
            checked = num_rows if most_rows is None else min(most_rows, num_rows)
            first, after = rank * checked // ranks, (rank + 1) * checked // ranks
            positives = _read(source, split, first, after, print_line)
    except DatasetError as error:
        problem = str(error)
    of_ranks = processes.gather_values((problem, positives))
    problems = [p for p, _ in of_ranks if p]
    if problems:
        raise DatasetError(problems[0])
    return CheckedSplit(num_rows, checked, sum(count for _, count in of_ranks))


def _vouches(manifest: Manifest, dataset: OpenedDataset, files: Sequence[Path]) -> bool:
    """Returns True if a manifest lists all files, and its ids fit the tables."""
    listed = {dataset.root / name for name in manifest.files}
    if not listed.issuperset(files):
        return False
    checked, tables = manifest.cardinalities, dataset.spec.table_sizes
    return len(checked) == len(tables) and all(map(int.__le__, checked, tables))


def _read(
    source: RowReader, split: str, first: int, after: int, print_line: Callable[[str], None]
) -> int:
    """Reads rows [first, after); returns the number of clicks among them."""
    done, positives, printed = 0, 0, time.monotonic()
    for rows, clicks in _blocks(source, first, after):
        done += rows
        positives += clicks
        if time.monotonic() - printed >= _SILENT_S:
            printed = time.monotonic()
            print_line(
                f"Checking the rows of the {split} split, because no {MANIFEST_FILE} vouches for "
                "them: "
                f"{min(done / (after - first), 1):.0%}"
            )
    return positives


def _blocks(source: RowReader, first: int, after: int) -> Iterator[tuple[int, int]]:
    """Yields the numbers of rows and clicks of each block."""
    if not isinstance(source, StreamedRows):
        for start in range(first, after, _BLOCK_ROWS):
            columns = source.read(start, min(start + _BLOCK_ROWS, after))
            yield len(columns), int(columns.label.sum())
        return
    blocks = source.stream(first)
    while first < after:
        columns = next(blocks)
        clicks = int(columns.label[: after - first].sum())
        first += len(columns)
        yield len(columns), clicks
