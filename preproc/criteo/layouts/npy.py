# SPDX-License-Identifier: Apache-2.0
"""Writes encoded columns as TorchRec's arrays, three a raw file."""

import itertools
from pathlib import Path

import numpy as np

from preproc.criteo.columns import read_rows
from preproc.criteo.engine import EngineJob, EngineResult
from preproc.criteo.layouts.torchrec import ROW_BYTES, dataset_spec
from preproc.criteo.rules import NUM_NUMERICAL, split_bounds
from recsys.data.npy_days import FOLDER, array_paths

_CHUNK_ROWS = 1 << 15


def write_days(engine_job: EngineJob, result: EngineResult) -> None:
    """Writes the arrays of the days that a staged dataset lacks.

    Rows are those of the raw files, in their order, the splits one after the other; a shuffled
    training split is cut where the files end.
    """
    lengths = [file.rows for file in result.files]
    ends = list(itertools.accumulate(lengths))
    folder = result.dataset / FOLDER
    folder.mkdir(exist_ok=True)
    total = sum(lengths)
    done = 0
    with engine_job.reporter.stage("npy", total * ROW_BYTES, lambda: (done * ROW_BYTES, done)):
        for day, (rows, end) in enumerate(zip(lengths, ends, strict=True)):
            if not array_paths(folder, day)[-1].exists():
                _write_day(engine_job, result, folder, day, end - rows, end)
            done = end


def _write_day(
    engine_job: EngineJob, result: EngineResult, folder: Path, day: int, first: int, last: int
) -> None:
    """Writes the rows [first, last) of all splits as a day."""
    job = engine_job.job
    spec = dataset_spec(job.layout, result.cardinalities)
    paths = array_paths(folder, day)
    unfinished = [path.with_suffix(".unfinished") for path in paths]
    widths = (NUM_NUMERICAL, len(spec.categorical), 1)
    dense, sparse, labels = (
        np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (last - first, width))
        for path, dtype, width in zip(unfinished, ("<f4", "<i4", "<i4"), widths, strict=True)
    )
    bounds = split_bounds([file.rows for file in result.files], job.semantics)
    for split, (begin, end) in bounds.items():
        start, stop = max(first, begin) - begin, min(last, end) - begin
        ranges = ((r, min(r + _CHUNK_ROWS, stop)) for r in range(start, stop, _CHUNK_ROWS))
        for row, chunk in read_rows(result.columns, split, spec, ranges):
            rows = slice(begin + row - first, begin + row - first + len(chunk))
            dense[rows] = chunk.numerical
            labels[rows, 0] = chunk.label
            for column, ids in enumerate(chunk.categorical):
                sparse[rows, column] = ids
    for array in (dense, sparse, labels):
        array.flush()  # waits for the disk
    del array, dense, sparse, labels
    # The labels come last: they mark the day as written.
    for path, made in zip(paths, unfinished, strict=True):
        made.replace(path)
