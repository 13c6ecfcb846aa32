# SPDX-License-Identifier: Apache-2.0
"""Finds the raw file and line of each row of a prepared click log."""

import csv
import dataclasses
import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dlrm.data.opened import OpenedDataset
from recsys.data.errors import DatasetError
from recsys.data.manifest import LOG_KINDS, MANIFEST_FILE, QUARANTINE_FILE, Manifest

logger = logging.getLogger(__name__)

_LONGEST_CELL = 1 << 23
"""Most characters of a cell: a raw row has up to 1 MiB, and an escaped byte takes four."""


def raw_lines(dataset: OpenedDataset) -> "RawLines | None":
    """Opens the raw lines of `eval_split`; returns None if the dataset does not record them."""
    if dataset.manifest is None:
        return None
    try:
        return RawLines.open(dataset.root, dataset.manifest, dataset.config.eval_split)
    except DatasetError as error:
        logger.warning("%s", error)
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class RawLines:
    """Finds the raw line of each row of a split.

    Rejected lines and headers have a line number but no row. Validation and test rows keep the
    order of the input.

    Attributes:
        files: names of the raw files, in input order.
        num_rejected: number of lines that were not valid rows.
    """

    files: tuple[str, ...]
    num_rejected: int
    _first_row: int
    _ends: npt.NDArray[np.int64]  # [files] number of lines up to the end of each file
    _rows_before: npt.NDArray[np.int64]  # number of rows before each line without a row

    @classmethod
    def open(cls, root: Path, manifest: Manifest, split: str) -> "RawLines | None":
        """Opens the lines of `validation` or `test`.

        Returns:
            None if the dataset was not made from a raw log, or its schema splits rows by time or at
            random.

        Raises:
            DatasetError: the quarantine file is missing or does not match the manifest.
        """
        if manifest.kind not in LOG_KINDS:
            return None
        schema = manifest.semantics.get("schema") or {}
        if schema.get("split") in ("time", "random") and "applied" not in manifest.semantics:
            return None
        sources = manifest.source_files
        try:
            files = tuple(str(source["name"]) for source in sources)
            rows, rejected = (
                np.array([source[count] for source in sources], np.int64)
                for count in ("rows", "rejected")
            )
            if rejected.min(initial=0) < 0 or rows.sum() != sum(manifest.rows.values()):
                raise ValueError("their rows do not match those of the splits")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DatasetError(
                f"{root / MANIFEST_FILE}: source_files do not give the raw line of a row: {error}; "
                "prepare the dataset again"
            ) from error
        has_header = bool(schema.get("header"))
        ends = np.cumsum(rows + rejected + has_header)
        lines = _rejected_lines(root / QUARANTINE_FILE, int(rejected.sum()))
        starts = np.concatenate([[0], ends[:-1]])
        headers = starts[: len(starts) * has_header]
        without_row = np.sort(np.concatenate([headers, np.repeat(starts, rejected) + lines - 1]))
        rows_before = without_row - np.arange(len(without_row))
        first_row, _ = manifest.split_ranges()[split]
        return cls(files, len(lines), first_row, ends, rows_before)

    def locate(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the raw lines of rows [start, stop) of the split.

        Returns:
            ([n] index of the file in `files`, [n] number of the line in that file, from 1).
        """
        rows = np.arange(self._first_row + start, self._first_row + stop)
        lines = rows + np.searchsorted(self._rows_before, rows, side="right")
        files = np.searchsorted(self._ends, lines, side="right")
        return files, lines - np.concatenate([[0], self._ends])[files] + 1


def _rejected_lines(path: Path, count: int) -> npt.NDArray[np.int64]:
    """Returns [count] line numbers of the rejected lines, from 1 in each file."""
    if not count:
        return np.empty(0, np.int64)
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            lines = [int(row["line_number"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DatasetError(
            f"{path}: not readable as the list of rejected rows: {error}; get the file again",
            path=path,
        ) from error
    if len(lines) != count:
        raise DatasetError(
            f"{path}: lists {len(lines):,} rejected rows, but manifest.json counts {count:,}; get "
            "the file again",
            path=path,
        )
    return np.array(lines, np.int64)
