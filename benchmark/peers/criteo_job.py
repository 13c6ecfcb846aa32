# SPDX-License-Identifier: Apache-2.0
"""Common command line, splits and output of the preprocessing peers.

python -m benchmark.peers.polars_criteo INPUT_FOLDER OUTPUT_FOLDER THREADS FREQUENCY_LIMIT
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from preproc.clicks.job import semantics_of
from preproc.clicks.rules import ClicksSemantics, Split, split_bounds
from preproc.clicks.schema.row_format import NUM_CATEGORICAL, NUM_NUMERICAL
from recsys.data.feature_spec import index_dtype

LABEL = "label"
NUMERICAL = tuple(f"num_{i}" for i in range(NUM_NUMERICAL))
CATEGORICAL = tuple(f"cat_{i}" for i in range(NUM_CATEGORICAL))
BATCH_ROWS = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CriteoPeerJob:
    """A job from TSV days to split binary, with preset `dlrm`."""

    input: Path
    output: Path
    threads: int
    frequency_limit: int

    @property
    def semantics(self) -> ClicksSemantics:
        """Rules of the transform, equal for all candidates."""
        return dataclasses.replace(semantics_of("dlrm"), frequency_limit=self.frequency_limit)

    def days(self) -> list[Path]:
        """Returns the day files in order of their numbers."""
        return sorted(self.input.glob("day_*"), key=lambda path: int(path.name[4:]))


def write_splits(
    job: CriteoPeerJob,
    cardinalities: Sequence[int],
    rows_per_day: list[int],
    encode: Callable[[int, int, int], Mapping[str, npt.NDArray[Any]]],
) -> None:
    """Writes the column files of all splits.

    Args:
        cardinalities: cardinality of each categorical column.
        encode: maps a day, a first row and the row after the last to the encoded columns, by their
            names: label, numbers in float32 and ids, [B] each.
    """
    dtypes = dict(zip(CATEGORICAL, map(index_dtype, cardinalities), strict=True))
    bounds = split_bounds(rows_per_day, job.semantics)
    with contextlib.ExitStack() as stack:
        files: dict[tuple[Split, str], BinaryIO] = {}
        for split in bounds:
            (job.output / split).mkdir(parents=True)
            for name in (LABEL, "numerical", *CATEGORICAL):
                file = (job.output / split / f"{name}.bin").open("wb")
                files[split, name] = stack.enter_context(file)
        offset = 0
        for day, rows in enumerate(rows_per_day):
            for split, (start, stop) in bounds.items():
                end = min(stop - offset, rows)
                for first in range(max(start - offset, 0), end, BATCH_ROWS):
                    columns = encode(day, first, min(first + BATCH_ROWS, end))
                    columns[LABEL].astype(np.bool_).tofile(files[split, LABEL])
                    numbers = np.empty((len(columns[LABEL]), NUM_NUMERICAL), np.float16)
                    for i, name in enumerate(NUMERICAL):
                        numbers[:, i] = columns[name]
                    numbers.tofile(files[split, "numerical"])
                    for name, dtype in dtypes.items():
                        columns[name].astype(dtype).tofile(files[split, name])
            offset += rows


def main(run: Callable[[CriteoPeerJob], None]) -> None:
    """Parses a peer's command line and runs its job."""
    parser = argparse.ArgumentParser(
        description="One peer of `python -m benchmark.run preprocessing`."
    )
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("frequency_limit", type=int)
    run(CriteoPeerJob(**vars(parser.parse_args())))
