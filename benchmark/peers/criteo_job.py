# SPDX-License-Identifier: Apache-2.0
"""Common command line, splits and output of the preprocessing peers.

python -m benchmark.peers.polars_criteo INPUT_FOLDER OUTPUT_FOLDER THREADS FREQUENCY_LIMIT
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from preproc.clicks.job import semantics_of
from preproc.clicks.rules import ClicksSemantics, Split, split_bounds
from preproc.clicks.schema.row_format import NUM_CATEGORICAL, NUM_NUMERICAL
from recsys.data.feature_spec import index_dtype

LABEL = "label"
NUMERICAL = tuple(f"num_{i}" for i in range(NUM_NUMERICAL))
CATEGORICAL = tuple(f"cat_{i}" for i in range(NUM_CATEGORICAL))


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

    def split_ranges(self, rows_per_day: list[int]) -> list[tuple[int, Split, int, int]]:
        """Returns (day, split, first row, row after the last) in order."""
        bounds = split_bounds(rows_per_day, self.semantics)
        ranges = []
        for day, rows in enumerate(rows_per_day):
            offset = sum(rows_per_day[:day])
            for split, (start, stop) in bounds.items():
                first, last = max(start - offset, 0), min(stop - offset, rows)
                if first < last:
                    ranges.append((day, split, first, last))
        return ranges


class SplitFiles:
    """Writes the column files of all splits."""

    def __init__(self, job: CriteoPeerJob, cardinalities: Sequence[int]) -> None:
        self._dtypes = [index_dtype(c) for c in cardinalities]
        self._stack = contextlib.ExitStack()
        names = ("label.bin", "numerical.bin", *(f"{c}.bin" for c in CATEGORICAL))
        self._files: dict[str, list[BinaryIO]] = {}
        for split in ("train", "validation", "test"):
            folder = job.output / split
            folder.mkdir(parents=True)
            self._files[split] = [
                self._stack.enter_context((folder / name).open("wb")) for name in names
            ]

    def append(
        self,
        split: Split,
        label: npt.NDArray[np.integer],
        numerical: Sequence[npt.NDArray[np.float32]],
        categorical: Sequence[npt.NDArray[np.integer]],
    ) -> None:
        """Appends samples: [B] labels, 13 columns [B] float32, 26 columns [B] ids."""
        files = self._files[split]
        label.astype(np.bool_).tofile(files[0])
        rows = np.empty((len(label), NUM_NUMERICAL), np.float16)
        for i, column in enumerate(numerical):
            rows[:, i] = column
        rows.tofile(files[1])
        for file, dtype, ids in zip(files[2:], self._dtypes, categorical, strict=True):
            ids.astype(dtype).tofile(file)

    def __enter__(self) -> "SplitFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def main(run: Callable[[CriteoPeerJob], None]) -> None:
    """Parses a peer's command line and runs its job."""
    parser = argparse.ArgumentParser(description="One peer of `python -m benchmark.preprocessing`.")
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("frequency_limit", type=int)
    run(CriteoPeerJob(**vars(parser.parse_args())))
