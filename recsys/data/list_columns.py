# SPDX-License-Identifier: Apache-2.0
"""Columns whose rows hold lists of ids."""

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.data.errors import DatasetError
from recsys.data.feature_spec import ListFeature
from recsys.data.positioned_io import close_all, open_for_reading, read_array

OFFSET = np.dtype("<i8")
WEIGHT = np.dtype("<f4")


@dataclasses.dataclass(frozen=True, slots=True)
class ListColumn:
    """The lists of B rows.

    Attributes:
        ids: [L] signed integers, the lists one after the other.
        offsets: [B + 1] int64 index of each list's first id, then L.
        weights: [L] float32 factor of each id; None without weights.
        is_mean: whether the vectors of a list are averaged; otherwise they are summed.
    """

    ids: npt.NDArray[np.signedinteger]
    offsets: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None = None
    is_mean: bool = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> "ListColumn":
        start, stop, _ = rows.indices(len(self))
        offsets = self.offsets[start : max(stop, start) + 1]
        taken = slice(int(offsets[0]), int(offsets[-1]))
        weights = None if self.weights is None else self.weights[taken]
        return ListColumn(self.ids[taken], offsets - offsets[0], weights, self.is_mean)

    def factors(self) -> npt.NDArray[np.float32]:
        """Returns [L] float32 factors of the ids' vectors in the sums of their lists."""
        factors = np.ones(len(self.ids), np.float32) if self.weights is None else self.weights
        if not self.is_mean:
            return factors
        lengths = np.diff(self.offsets)
        divisors = np.repeat(lengths, lengths).astype(np.float32)
        return np.divide(factors, divisors, dtype=np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class ListFiles:
    """The files of a feature's lists in a split.

    Attributes:
        ids: file of the ids, in the dtype of the feature.
        offsets: file of [N + 1] int64 offsets.
        weights: file of the float32 weights; None without weights.
    """

    ids: Path
    offsets: Path
    weights: Path

    @classmethod
    def of(cls, folder: Path, table: int) -> "ListFiles":
        """Returns the files of the feature whose table has the given number."""
        name = f"cat_{table}"
        files = (folder / f"{name}{ending}.bin" for ending in ("", ".offsets", ".weights"))
        return cls(*files)


class ListReader:
    """Reads the lists of a split; `read` is thread-safe.

    Args:
        folder: folder of the split.
        feature: name, cardinality and form of the feature.
        table: number of the feature's table.
        num_rows: rows of the split.
        check_ids: whether to refuse ids outside the table.

    Raises:
        DatasetError: a file is missing, or its size fits neither the rows nor the lists.
    """

    def __init__(
        self, folder: Path, feature: ListFeature, table: int, num_rows: int, *, check_ids: bool
    ) -> None:
        self._feature, self._check_ids = feature, check_ids
        self._paths = ListFiles.of(folder, table)
        self.files = [self._paths.ids, self._paths.offsets]
        self.files += [self._paths.weights] if feature.is_weighted else []
        self._fds: dict[str, int] = {}
        weakref.finalize(self, close_all, self._fds)  # closes the files of a dropped reader
        try:
            for path in self.files:
                self._fds[path.name] = open_for_reading(path)
            size = self._paths.offsets.stat().st_size
            if size != (num_rows + 1) * OFFSET.itemsize:
                raise DatasetError(
                    f"{self._paths.offsets}: has {size} bytes, not {num_rows} + 1 times 8; get the "
                    "dataset again",
                    path=self._paths.offsets,
                )
            count = self._count = int(self._array(self._paths.offsets, OFFSET, num_rows, 1)[0])
            widths = (feature.dtype.itemsize, WEIGHT.itemsize)
            for path, width in zip((self._paths.ids, self._paths.weights), widths, strict=True):
                if path in self.files and path.stat().st_size != count * width:
                    raise DatasetError(
                        f"{path}: has {path.stat().st_size} bytes, not {count} times {width} as "
                        f"{self._paths.offsets.name} says; get the dataset again",
                        path=path,
                    )
        except BaseException:
            self.close()
            raise

    def _array(self, path: Path, dtype: np.dtype[Any], start: int, count: int) -> npt.NDArray[Any]:
        return read_array(self._fds[path.name], path, dtype, start * dtype.itemsize, count)

    def read(self, start: int, stop: int) -> ListColumn:
        """Returns the lists of rows [start, stop).

        Raises:
            DatasetError: an offset is below the one before, or a checked id is outside the table.
        """
        offsets = self._array(self._paths.offsets, OFFSET, start, stop - start + 1)
        if offsets[0] < 0 or offsets[-1] > self._count or (np.diff(offsets) < 0).any():
            raise DatasetError(
                f"{self._paths.offsets}: offsets decrease, or lie outside [0, {self._count}]; get "
                "the dataset again",
                path=self._paths.offsets,
            )
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        ids = self._array(self._paths.ids, self._feature.dtype.newbyteorder("<"), first, count)
        if self._check_ids and count:
            wrong = np.flatnonzero((ids < 0) | (ids >= self._feature.cardinality))
            if len(wrong):
                raise DatasetError(
                    f"{self._paths.ids}: feature {self._feature.name}, element {first + wrong[0]}: "
                    f"id {ids[wrong[0]]} is outside [0, {self._feature.cardinality}); get the "
                    "dataset again",
                    path=self._paths.ids,
                )
        weights = None
        if self._feature.is_weighted:
            weights = self._array(self._paths.weights, WEIGHT, first, count)
        return ListColumn(ids, offsets - first, weights, self._feature.pooling == "mean")

    def close(self) -> None:
        """Closes the files."""
        close_all(self._fds)
