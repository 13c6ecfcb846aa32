# SPDX-License-Identifier: Apache-2.0
"""TorchRec's NPY layout: three arrays for each day.

day_N_dense.npy is float32 [rows, M], day_N_sparse.npy int32 [rows, F], day_N_labels.npy int32
[rows, 1]. The last day holds validation and test. torchrec_dlrm and MLPerf's script also read it.
Source: TorchRec, datasets/criteo.py, InMemoryBinaryCriteoIterDataPipe.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recsys.data.click_columns import RawColumns
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.data.manifest import MANIFEST_FILE, Manifest
from recsys.data.positioned_io import map_array, require_regular
from recsys.data.row_reader import RowReader

FOLDER = "npy"
_DENSE_NAME = re.compile(r"day_(0|[1-9][0-9]*)_dense\.npy")


def array_paths(folder: Path, day: int) -> tuple[Path, Path, Path]:
    """Returns the files of a day: dense, sparse, labels."""
    dense, sparse, labels = (
        folder / f"day_{day}_{kind}.npy" for kind in ("dense", "sparse", "labels")
    )
    return dense, sparse, labels


def find_folder(root: Path) -> Path | None:
    """Returns the folder that holds the arrays, or None."""
    for folder in (root / FOLDER, root):
        if folder.is_dir() and any(_DENSE_NAME.fullmatch(path.name) for path in folder.iterdir()):
            return folder
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Day:
    """The memory-mapped arrays of a day."""

    paths: tuple[Path, Path, Path]
    dense: npt.NDArray[np.float32]
    sparse: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]


class NpyReader(RowReader):
    """Reads the rows of a split from memory-mapped arrays.

    A manifest says how the rows are split. Without a manifest the last day is halved as TorchRec
    does: its first half, the longer one, is validation.

    Args:
        root: folder of the dataset; the arrays are in it or in `npy`.
        split: `train`, `validation` or `test`.
        spec: columns of the dataset; None reads the spec of the folder.
        check_ids: whether `read` refuses ids outside their tables.

    Raises:
        DatasetError: an array is missing, damaged, or of another shape or type.
    """

    format_name = "npy"

    def __init__(
        self, root: Path, split: str, spec: FeatureSpec | None = None, *, check_ids: bool = False
    ) -> None:
        super().__init__(spec or FeatureSpec.load(root), check_ids=check_ids)
        folder = find_folder(root)
        if folder is None:
            raise DatasetError(
                f"{root}: no day_0_dense.npy in it or in {FOLDER}/; `dataset_type` npy reads "
                "TorchRec's arrays (`recsys-recipes prepare clicks` writes them with `format` npy)",
                settings=("dataset_type", "format"),
            )
        self._days = [_open_day(folder, day, self.spec) for day in range(_count_days(folder))]
        lengths = [len(day.labels) for day in self._days]
        self._ends = list(itertools.accumulate(lengths))
        self._first, last = _split_ranges(root, lengths)[split]
        self.num_rows = last - self._first
        self.files = [
            path
            for day, end, rows in zip(self._days, self._ends, lengths, strict=True)
            if end > self._first and end - rows < last
            for path in day.paths
        ]

    def read_unchecked(self, start: int, stop: int) -> RawColumns:
        """Returns rows [start, stop), with float32 numbers and int32 ids."""
        first, last = self._first + start, self._first + stop
        pieces: list[tuple[npt.NDArray[np.generic], ...]] = []
        for day, end in zip(self._days, self._ends, strict=True):
            begin = end - len(day.labels)
            if (begin < last and end > first) or (start == stop and not pieces):
                rows = slice(max(first - begin, 0), max(last - begin, 0))
                pieces.append((day.labels[rows, 0], day.dense[rows], day.sparse[rows]))
        labels, dense, sparse = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        ids = np.ascontiguousarray(sparse.T)
        return RawColumns(labels, dense, tuple(ids))

    def path_of(self, column: str, row: int) -> Path:
        """Returns the file of a column's array for the day of a row."""
        day = bisect.bisect_right(self._ends, self._first + row)
        dense, sparse, labels = self._days[min(day, len(self._days) - 1)].paths
        if column == self.spec.label:
            return labels
        return dense if column in self.spec.numerical else sparse


def _count_days(folder: Path) -> int:
    days = {
        int(match[1])
        for path in folder.iterdir()
        if (match := _DENSE_NAME.fullmatch(path.name)) is not None
    }
    missing = sorted(set(range(max(days) + 1)) - days)
    if missing:
        raise DatasetError(
            f"{folder}: days must go from 0 to {max(days)} without a gap; missing: "
            f"{', '.join(f'day_{day}_dense.npy' for day in missing)}"
        )
    return len(days)


def _open_day(folder: Path, day: int, spec: FeatureSpec) -> _Day:
    paths = array_paths(folder, day)
    arrays = []
    widths = (len(spec.numerical), len(spec.categorical), 1)
    for path, dtype, width in zip(paths, ("<f4", "<i4", "<i4"), widths, strict=True):
        try:
            require_regular(path)
            opened = np.lib.format.open_memmap(path, "r")
            if opened.flags.c_contiguous:
                array = map_array(path, opened.dtype, opened.shape, opened.offset)
            else:
                array = map_array(path, opened.dtype, opened.shape[::-1], opened.offset).T
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"{path}: cannot be read as a NumPy array: {error}", path=path
            ) from error
        if array.dtype != np.dtype(dtype) or array.ndim != 2 or array.shape[1] != width:
            raise DatasetError(
                f"{path}: holds {array.dtype} of shape {array.shape}, but the feature spec asks "
                f"for {np.dtype(dtype)} of [rows, {width}]",
                path=path,
            )
        arrays.append(array)
    rows = {len(array) for array in arrays}
    if len(rows) != 1:
        lengths = ", ".join(f"{p.name} {len(a):,}" for p, a in zip(paths, arrays, strict=True))
        raise DatasetError(f"{folder}: the arrays of day {day} differ in rows: {lengths}")
    return _Day(paths, *arrays)


def _split_ranges(root: Path, lengths: list[int]) -> Mapping[str, tuple[int, int]]:
    """Returns first row and end of each split, counted over all days."""
    total = sum(lengths)
    if (root / MANIFEST_FILE).is_file():
        manifest = Manifest.load(root)
        if sum(manifest.rows.values()) != total:
            raise DatasetError(
                f"{root}: its arrays hold {total:,} rows, but manifest.json says "
                f"{sum(manifest.rows.values()):,}; prepare the dataset again"
            )
        return manifest.split_ranges()
    if len(lengths) < 2:
        raise DatasetError(
            f"{root}: holds only day_0, but the last day is split into validation and test, so "
            "none is left for training; add days, or prepare the dataset again to get a "
            "manifest.json, which records the splits"
        )
    train = total - lengths[-1]
    middle = train + -(-lengths[-1] // 2)
    return {"train": (0, train), "validation": (train, middle), "test": (middle, total)}
