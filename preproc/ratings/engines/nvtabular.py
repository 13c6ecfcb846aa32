# SPDX-License-Identifier: Apache-2.0
"""The NVTabular engine of ratings.

Rows that match the grammar and reach `min_rating` go to parquet parts. NVTabular numbers the raw
ids (`Categorify`), counts and filters for the k-core (`Filter`), and encodes rows in dense ids. The
order of dense ids follows `ratings.ids`, since NVTabular breaks ties at random. Memory holds the
distinct ids, and about 28 bytes for each row that passes the filters.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.errors import PreprocError
from preproc.files.progress import ProgressReporter
from preproc.nvtabular.counts import (
    MAX_GROUP_PARTS,
    GroupProgress,
    RowFile,
    count_columns,
    groups_of,
    merge_counts,
    total_bytes,
    write_vocabulary,
)
from preproc.nvtabular.process import FIRST_ID, NvtabularProcess
from preproc.ratings.format import ITEM, ROW, TIMESTAMP, USER
from preproc.ratings.histories import Filtered, Read, collect, ties, time_keys
from preproc.ratings.ids import FIRST_IDS, order_ids, repeat_passes
from preproc.ratings.job import RatingsJob
from preproc.ratings.read import RawParts, nothing_left
from recsys.data.sequences.histories import RawIds
from recsys.resources import available_cores


def run(
    job: RatingsJob, read: Read, folder: Path, reporter: ProgressReporter
) -> tuple[Filtered, dict[str, Any]]:
    """Makes the histories of a ratings file with NVTabular; see `Engine`."""
    process = NvtabularProcess(
        job.nvtabular_python, job.nvtabular_device, None, available_cores(), folder / "log"
    )
    with process:
        (folder / "raw").mkdir()
        raw = RawParts(folder / "raw")
        rows_read = read(raw)
        steps = RatingsSteps(process, folder, reporter, raw.paths)
        maps, passes = _filter_and_encode(job, steps)
        if not steps.num_rows:
            raise nothing_left(job, rows_read.num_rows)
        columns = steps.load([USER, ITEM, *([TIMESTAMP] if raw.has_timestamps else [])])
    users, items = (
        columns[column].astype(np.int32) - (FIRST_ID - FIRST_IDS[column]) for column in (USER, ITEM)
    )
    keys = time_keys(users, columns.get(TIMESTAMP))
    order = np.argsort(keys, kind="stable")
    is_tied = ties(keys, order) if TIMESTAMP in columns else None
    del keys
    times = None if job.quantile is None else columns[TIMESTAMP][order]
    filtered = collect(
        items[order], times, maps[USER], maps[ITEM], is_tied, rows_read, passes, reporter
    )
    engine = {"name": "nvtabular", "version": process.version, "device": process.device}
    return filtered, engine


class RatingsSteps:
    """Steps of NVTabular on rows in parquet parts.

    Attributes:
        num_rows: rows after the last step.
    """

    def __init__(
        self,
        process: NvtabularProcess,
        folder: Path,
        reporter: ProgressReporter,
        paths: Sequence[Path],
    ) -> None:
        self._process = process
        self._folder = folder
        self._reporter = reporter
        self._steps = 0
        self._set_parts(paths)

    def _set_parts(self, paths: Sequence[Path]) -> None:
        files = [RowFile(path, pq.read_metadata(path).num_rows) for path in paths]
        self._parts = [file for file in files if file.rows]  # Categorify fails on an empty one
        self.num_rows = sum(file.rows for file in self._parts)

    def _new_folder(self) -> Path:
        self._steps += 1
        folder = self._folder / f"step_{self._steps:05d}"
        folder.mkdir(parents=True)
        return folder

    def count(self, *columns: str) -> dict[str, tuple[pa.Array, npt.NDArray[np.int64]]]:
        """Returns the distinct values of columns with their counts."""
        folder = self._new_folder()
        folders = count_columns(
            self._process, self._parts, columns, folder, MAX_GROUP_PARTS, self._reporter
        )
        counts = {column: merge_counts(folders, column) for column in columns}
        shutil.rmtree(folder)
        return counts

    def filter(self, column: str, values: pa.Array) -> None:
        """Keeps the rows with one of some values in a column."""
        folder = self._new_folder()
        among = write_vocabulary(folder, column, values)
        kept = pq.read_schema(self._parts[0].path).names
        request = {"do": "filter", "kept": kept, "column": column, "among": among}
        self._replace("filter", request, folder)

    def encode(self, vocabularies: dict[str, pa.Array]) -> None:
        """Replaces values by their index in the vocabularies plus `FIRST_ID`."""
        folder = self._new_folder()
        names = pq.read_schema(self._parts[0].path).names
        request = {
            "do": "prepare",
            "parts": [str(self._parts[0].path)],
            "folder": str(folder / "vocabularies"),
            "kept": [n for n in names if n not in vocabularies],
            "vocabularies": {
                column: write_vocabulary(folder, column, values)
                for column, values in vocabularies.items()
            },
        }
        self._process.call(request, lambda _: None)
        self._replace("encode", {"do": "encode"}, folder)

    def _replace(self, stage: str, request: dict[str, Any], folder: Path) -> None:
        """Sends a request about every group; results replace the parts."""
        paths: list[Path] = []
        progress = GroupProgress()
        with self._reporter.stage(stage, total_bytes(self._parts), progress.counters):
            for index, group in enumerate(groups_of(self._parts, MAX_GROUP_PARTS)):
                group_folder = folder / f"{index:05d}"
                progress.run(self._process, request | {"folder": str(group_folder)}, group)
                paths += [group_folder / old.path.name for old in group]
        for old in self._parts:
            old.path.unlink()
        self._set_parts(paths)

    def load(self, columns: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Reads columns of all rows.

        Raises:
            PreprocError: the rows are not in file order.
        """
        chunks: dict[str, list[npt.NDArray[Any]]] = {column: [] for column in columns}
        last = -1
        for file in self._parts:
            table = pq.read_table(file.path, columns=[*columns, ROW])
            rows = table[ROW].to_numpy()
            missing = any(c.null_count for c in table.columns)
            if missing or rows[0] <= last or (np.diff(rows) <= 0).any():
                raise PreprocError(
                    f"{file.path}: NVTabular did not give back the rows in their order and without "
                    "missing values. Please report this error of the engine; `engine` pyarrow "
                    "makes the same dataset"
                )
            last = int(rows[-1])
            for column in columns:
                chunks[column].append(table[column].to_numpy())
        return {column: np.concatenate(arrays) for column, arrays in chunks.items()}


def _filter_and_encode(job: RatingsJob, steps: RatingsSteps) -> tuple[dict[str, RawIds], int]:
    """Filters the rows and encodes users and items, counted from `FIRST_ID`.

    Returns:
        The raw ids of users and items, unless no row is left; the passes that dropped rows.

    Raises:
        PreprocError: NVTabular failed.
    """
    # Numbers in place of the raw ids first: comparing them is much cheaper than strings.
    counts = steps.count(USER, ITEM)
    raw_ids = {column: values for column, (values, _) in counts.items()}
    steps.encode(raw_ids)

    def drop_rare() -> None:
        for column, minimum in job.min_counts.items():
            if minimum > 1 and steps.num_rows:
                values, occurrences = steps.count(column)[column]
                enough = occurrences >= minimum
                if not enough.all():
                    steps.filter(column, values.filter(pa.array(enough)))

    passes = repeat_passes(job.kcore, lambda: steps.num_rows, drop_rare)
    if not steps.num_rows:
        return {}, passes
    maps, vocabularies = {}, {}
    for column, (codes, occurrences) in steps.count(USER, ITEM).items():
        ids = raw_ids[column].take(pa.array(codes.to_numpy() - FIRST_ID))
        order = order_ids(column, ids, occurrences)
        maps[column] = RawIds(ids.take(pa.array(order)), occurrences[order])
        vocabularies[column] = codes.take(pa.array(order))
    steps.encode(vocabularies)
    return maps, passes
