# SPDX-License-Identifier: Apache-2.0
"""The NVTabular engine of ratings.

Rows that match the grammar and reach `min_rating` go to parquet parts. NVTabular numbers the raw
ids (`Categorify`), counts and filters for the k-core (`Filter`), and encodes rows in dense ids. We
choose the order of dense ids, because NVTabular breaks ties at random. Memory holds the distinct
ids, and about 36 bytes for each row that passes the filters.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from preproc.files.progress import ProgressReporter
from preproc.nvtabular.counts import (
    MAX_GROUP_PARTS,
    GroupProgress,
    RowFile,
    count_columns,
    groups_of,
    merge_counts,
    read_in_order,
    total_bytes,
    write_vocabulary,
)
from preproc.nvtabular.process import FIRST_ID, NvtabularProcess
from preproc.ratings.engines.parts import PartRows
from preproc.ratings.format import ROW
from preproc.ratings.job import RatingsJob
from preproc.ratings.stages import FIRST_IDS, EngineRows, Ordered, order_ids, order_rows
from recsys.data.sequences.histories import RawIds
from recsys.resources import available_cores


@contextlib.contextmanager
def open_rows(job: RatingsJob, folder: Path, reporter: ProgressReporter) -> Iterator[EngineRows]:
    """Starts NVTabular; see `OpenRows`."""
    with NvtabularProcess(
        job.nvtabular_python, job.nvtabular_device, None, available_cores(), folder / "log"
    ) as process:
        yield NvtabularRows(process, folder, reporter)


class NvtabularRows(PartRows):
    """The rows in parquet parts; each step of NVTabular replaces them. See `EngineRows`.

    Attributes:
        engine: name, version and device.
        num_rows: rows after the last step.
    """

    def __init__(self, process: NvtabularProcess, folder: Path, reporter: ProgressReporter) -> None:
        super().__init__(folder / "raw")
        self._process, self._reporter = process, reporter
        self._steps = 0
        self.engine = {"name": "nvtabular", "version": process.version, "device": process.device}

    def finish(self) -> None:
        """Numbers the raw ids, for now in NVTabular's order."""
        self._columns = pq.read_schema(self.paths[0]).names
        self._set_parts(self.paths)
        # First replace the raw ids by numbers, which are much cheaper to compare than strings.
        self._raw = {column: raw for column, (raw, _) in self._count(*FIRST_IDS).items()}
        self._encode(self._raw)

    def _set_parts(self, paths: Sequence[Path]) -> None:
        files = [RowFile(path, pq.read_metadata(path).num_rows) for path in paths]
        self._parts = [file for file in files if file.rows]  # Categorify fails on an empty one
        self.num_rows = sum(file.rows for file in self._parts)

    def _new_folder(self) -> Path:
        self._steps += 1
        folder = self.folder.with_name(f"step_{self._steps:05d}")
        folder.mkdir()
        return folder

    def _count(self, *columns: str) -> dict[str, tuple[pa.Array, npt.NDArray[np.int64]]]:
        """Returns the distinct values of columns with their counts."""
        folder = self._new_folder()
        folders = count_columns(
            self._process, self._parts, columns, folder, MAX_GROUP_PARTS, self._reporter
        )
        counts = {column: merge_counts(folders, column) for column in columns}
        shutil.rmtree(folder)
        return counts

    def _encode(self, vocabularies: dict[str, pa.Array]) -> None:
        """Replaces each value by `FIRST_ID` plus its index in the vocabulary."""
        folder = self._new_folder()
        request = {
            "do": "prepare",
            "parts": [str(self._parts[0].path)],
            "folder": str(folder / "vocabularies"),
            "kept": [n for n in self._columns if n not in vocabularies],
            "vocabularies": {
                column: write_vocabulary(folder, column, values)
                for column, values in vocabularies.items()
            },
        }
        self._process.call(request, lambda _: None)
        self._replace("encode", {"do": "encode"}, folder)

    def _replace(self, stage: str, request: dict[str, Any], folder: Path) -> None:
        """Sends a request for every group; the results replace the parts."""
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

    def drop_rare(self, minimums: Mapping[str, int]) -> None:
        """Counts each column, and filters the rows if any value is rare."""
        for column, minimum in minimums.items():
            if not self.num_rows:
                return
            values, counts = self._count(column)[column]
            enough = counts >= minimum
            if not enough.all():
                folder = self._new_folder()
                among = write_vocabulary(folder, column, values.filter(pa.array(enough)))
                request = {"do": "filter", "kept": self._columns, "column": column, "among": among}
                self._replace("filter", request, folder)

    def number(self) -> dict[str, RawIds]:
        """Counts both columns, and encodes the rows with vocabularies in our order."""
        ids, vocabularies = {}, {}
        for column, (codes, counts) in self._count(*FIRST_IDS).items():
            raw = RawIds(self._raw[column].take(pa.array(codes.to_numpy() - FIRST_ID)), counts)
            order = order_ids(column, raw)
            ids[column], vocabularies[column] = raw.take(order), codes.take(pa.array(order))
        self._encode(vocabularies)
        return ids

    def ordered(self, *, with_times: bool) -> Ordered:
        """Orders the rows in memory."""
        return order_rows(self._load(), with_times=with_times)

    def _load(self) -> dict[str, npt.NDArray[Any]]:
        tables = (part.drop_columns(ROW) for part in read_in_order(self._parts, ROW))
        table = pa.concat_tables(tables)
        columns = {name: table[name].to_numpy() for name in table.column_names}
        for column, first in FIRST_IDS.items():
            columns[column] = columns[column].astype(np.int32) - (FIRST_ID - first)
        return columns
