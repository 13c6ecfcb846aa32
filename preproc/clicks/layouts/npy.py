# SPDX-License-Identifier: Apache-2.0
"""Writes encoded columns as TorchRec's arrays, three per raw file."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from preproc.clicks.columns import ColumnsReader
from preproc.clicks.engine import EngineJob, EngineResult
from preproc.clicks.layouts.torchrec import ROW_BYTES, dataset_spec
from preproc.clicks.rules import Bounds, split_bounds
from preproc.clicks.schema.row_format import NUM_NUMERICAL
from preproc.files.workspace import atomic_file
from recsys.data.formats.npy_days import FOLDER, array_paths
from recsys.data.positioned_io import write_at

_CHUNK_ROWS = 1 << 15


def write_days(engine_job: EngineJob, result: EngineResult) -> None:
    """Writes the arrays of the days that a staged dataset lacks.

    Each day has as many rows as its raw file. Rows are taken split by split, in order; a shuffled
    training split is cut at the same positions.
    """
    lengths = [file.rows for file in result.files]
    ends = list(itertools.accumulate(lengths))
    folder = result.dataset / FOLDER
    folder.mkdir(exist_ok=True)
    total = sum(lengths)
    done = 0
    spec = dataset_spec(engine_job.job, result.cardinalities)
    bounds = split_bounds(lengths, engine_job.job.semantics)
    with (
        ColumnsReader(result.columns, spec) as reader,
        engine_job.reporter.stage("npy", total * ROW_BYTES, lambda: (done * ROW_BYTES, done)),
    ):
        for day, (rows, end) in enumerate(zip(lengths, ends, strict=True)):
            paths = array_paths(folder, day)
            if not paths[-1].exists():
                _write_day(reader, bounds, paths, len(spec.categorical), end - rows, end)
            done = end


def _write_day(
    reader: ColumnsReader,
    bounds: Bounds,
    paths: Sequence[Path],
    num_categorical: int,
    first: int,
    last: int,
) -> None:
    """Writes the rows [first, last) of all splits as a day."""
    rows = last - first
    with contextlib.ExitStack() as files:
        # Files get their names in reverse order: the labels come last and mark the day as done.
        labels = files.enter_context(_array(paths[2], "<i4", rows, 1))
        sparse = files.enter_context(_array(paths[1], "<i4", rows, num_categorical))
        dense = files.enter_context(_array(paths[0], "<f4", rows, NUM_NUMERICAL))
        for split, (begin, end) in bounds.items():
            start, stop = max(first, begin) - begin, min(last, end) - begin
            ranges = ((r, min(r + _CHUNK_ROWS, stop)) for r in range(start, stop, _CHUNK_ROWS))
            for row, chunk in reader.read(split, ranges):
                day_row = begin + row - first
                dense(day_row, chunk.numerical)
                sparse(day_row, np.stack(chunk.categorical, axis=1))
                labels(day_row, chunk.label)


@contextlib.contextmanager
def _array(
    path: Path, dtype: str, rows: int, width: int
) -> Iterator[Callable[[int, npt.NDArray[Any]], None]]:
    """Makes an array's file; yields a function that writes its rows.

    The file is not memory-mapped: if the disk is full, a write to a map kills the process.
    """
    with atomic_file(path) as file:
        header = {"descr": dtype, "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        start, row_bytes = file.tell(), width * np.dtype(dtype).itemsize

        def write(row: int, values: npt.NDArray[Any]) -> None:
            write_at(file.fileno(), values.astype(dtype, copy=False), start + row * row_bytes)

        yield write
