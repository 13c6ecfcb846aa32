# SPDX-License-Identifier: Apache-2.0
"""Collects statistics and bad values of a split."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.data.click_columns import RawColumns
from recsys.data.feature_spec import CategoricalFeature, FeatureSpec
from recsys.data.row_reader import RowReader

_REMEDY = (
    "the feature spec does not belong to this data, or the data is damaged: prepare the dataset "
    "again"
)


class SplitStatistics:
    """Statistics of the rows added so far, in constant memory.

    Args:
        spec: columns of the dataset.
        is_compared: collect the sums that `compare` needs; rounding to float16 takes time.

    Attributes:
        spec: columns of the dataset.
        num_rows: number of rows.
        positives: number of clicks.
        numerical_min: [M] float64 minima of the finite values.
        numerical_max: [M] float64 maxima of the finite values.
        id_max: [F] int64 highest ids, -1 without rows.
        id_zeros: [F] int64 number of rows with id 0.
        zero_rows: number of rows with 0 in every numerical feature.
        lists: [L, 4] int64 of each feature of lists: elements, those with id 0, highest id, length
            of the longest.
        label_sum: [1] uint64 sum of the weights of clicked rows, to compare formats.
        id_sums: [F] uint64 sums of ids times the weights of their rows.
        numerical_sums: float dtype -> [M] uint64 such sums of the values' bits in it; float16 of
            all formats, float32 of those that store it.
    """

    def __init__(self, spec: FeatureSpec, *, is_compared: bool) -> None:
        self.spec = spec
        self._is_compared = is_compared
        self.num_rows = 0
        self.positives = 0
        num_numerical, num_categorical = len(spec.numerical), len(spec.categorical)
        self.numerical_min = np.full(num_numerical, np.inf)
        self.numerical_max = np.full(num_numerical, -np.inf)
        self._numerical_sum = np.zeros(num_numerical)
        self._numerical_finite = np.zeros(num_numerical, np.int64)
        self.id_max = np.full(num_categorical, -1, np.int64)
        self.id_zeros = np.zeros(num_categorical, np.int64)
        self.zero_rows = 0
        self.lists = np.zeros((len(spec.lists), 4), np.int64)
        self.label_sum = np.zeros(1, np.uint64)
        self.id_sums = np.zeros(num_categorical, np.uint64)
        self.numerical_sums: dict[str, npt.NDArray[np.uint64]] = {}
        self._bad: dict[tuple[str, Path], tuple[str, int]] = {}

    @property
    def base_rate(self) -> float:
        """Fraction of clicks; nan without rows."""
        return self.positives / self.num_rows if self.num_rows else float("nan")

    @property
    def numerical_mean(self) -> npt.NDArray[np.float64]:
        """[M] means of the finite values."""
        return self._numerical_sum / np.maximum(self._numerical_finite, 1)

    def problems(self) -> list[str]:
        """Returns the first bad value of each column and file."""
        lines = []
        for (name, path), (first, count) in self._bad.items():
            more = f" (and {count - 1:,} more rows)" if count > 1 else ""
            lines.append(f"{path}: feature {name}, {first}{more}; {_REMEDY}")
        return lines

    def add(self, reader: RowReader, first_row: int, columns: RawColumns) -> None:
        """Adds rows of a reader, of which the first has a number.

        Raises:
            DatasetError: a file of lists is damaged.
        """
        note = functools.partial(self._note, reader, first_row)
        self.num_rows += len(columns.label)
        label = columns.label
        # The common case, without temporaries of four times the size.
        is_clean = label.dtype == np.uint8 and label.max(initial=0) <= 1
        wrong = np.zeros(0, np.bool_) if is_clean else (label != 0) & (label != 1)
        self.positives += int(np.count_nonzero(label)) if is_clean else int((label == 1).sum())
        note(self.spec.label, wrong, label, "is neither 0 nor 1")
        if columns.numerical.shape[1]:
            self._add_numerical(note, columns.numerical)
        for i, (feature, ids) in enumerate(
            zip(self.spec.categorical, columns.categorical, strict=True)
        ):
            self._add_ids(note, i, feature, ids)
        for counts, column in zip(
            self.lists, reader.read_lists(first_row, first_row + len(label)), strict=True
        ):
            count, longest = len(column.ids), np.diff(column.offsets).max(initial=0)
            counts[:2] += np.array([count, count - np.count_nonzero(column.ids)])
            np.maximum(counts[2:], (column.ids.max(initial=0), longest), out=counts[2:])
        if self._is_compared:
            self._add_sums(columns, _row_weights(first_row, len(label)))

    def _add_sums(self, columns: RawColumns, weights: npt.NDArray[np.uint64]) -> None:
        self.label_sum += weights[columns.label == 1].sum(dtype=np.uint64)
        for i, ids in enumerate(columns.categorical):
            self.id_sums[i : i + 1] += ids.astype(np.int64).view(np.uint64) @ weights
        with np.errstate(over="ignore", invalid="ignore"):
            half = np.ascontiguousarray(columns.numerical.T, np.float16)
        stored = {"float16": half.view(np.uint16)}
        if columns.numerical.dtype != np.float16:
            wide = np.ascontiguousarray(columns.numerical.T, np.float32)
            stored["float32"] = wide.view(np.uint32)
        for dtype, bits in stored.items():
            sums = self.numerical_sums.setdefault(dtype, np.zeros(len(bits), np.uint64))
            sums += np.einsum("mb,b->m", bits.astype(np.uint64), weights)

    def _add_numerical(self, note: Callable[..., None], values: npt.NDArray[Any]) -> None:
        # NumPy may warn of a NaN that `where` leaves out.
        with np.errstate(invalid="ignore"):
            wide = np.ascontiguousarray(values.T, np.float32)  # float16 is emulated, and slow
            finite = np.isfinite(wide)
            low = np.min(wide, axis=1, initial=np.inf, where=finite)
            high = np.max(wide, axis=1, initial=-np.inf, where=finite)
            self._numerical_sum += wide.sum(axis=1, dtype=np.float64, where=finite)
        if not finite.all():
            for i, name in enumerate(self.spec.numerical):
                note(name, ~finite[i], values[:, i], "is not finite")
        self.numerical_min = np.minimum(self.numerical_min, low)
        self.numerical_max = np.maximum(self.numerical_max, high)
        self._numerical_finite += finite.sum(axis=1)
        self.zero_rows += len(values) - int(np.count_nonzero((wide != 0).any(axis=0)))

    def _add_ids(
        self,
        note: Callable[..., None],
        index: int,
        feature: CategoricalFeature,
        ids: npt.NDArray[Any],
    ) -> None:
        if not len(ids):
            return
        highest, lowest = int(ids.max()), int(ids.min())
        if highest >= feature.cardinality or lowest < 0:
            wrong = (ids < 0) | (ids >= feature.cardinality)
            note(feature.name, wrong, ids, f"is outside [0, {feature.cardinality})", "id")
        self.id_max[index] = max(int(self.id_max[index]), min(highest, np.iinfo(np.int64).max))
        self.id_zeros[index] += len(ids) - np.count_nonzero(ids)

    def _note(
        self,
        reader: RowReader,
        first_row: int,
        name: str,
        wrong: npt.NDArray[np.bool_],
        values: npt.NDArray[Any],
        what: str,
        kind: str = "value",
    ) -> None:
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        key = (name, reader.path_of(name, first_row))
        first = f"row {first_row + int(rows[0])}: {kind} {values[rows[0]]} {what}"
        first, count = self._bad.get(key, (first, 0))
        self._bad[key] = (first, count + len(rows))


def _row_weights(first_row: int, num_rows: int) -> npt.NDArray[np.uint64]:
    """Returns [num_rows] odd numbers that tell the rows of a split apart."""
    rows = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
    return rows * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)


def compare(
    where: str, one: tuple[str, SplitStatistics], other: tuple[str, SplitStatistics]
) -> list[str]:
    """Lists the differences between two formats of the same split.

    Args:
        where: folder and split for the messages.
        one: name and statistics of a format.
        other: name and statistics of another format.
    """
    (one_name, first), (other_name, second) = one, other
    lines = []
    differ: list[tuple[str, Sequence[str], npt.NDArray[np.bool_]]] = []
    if first.positives != second.positives:
        lines.append(
            f"{first.positives:,} clicks in {one_name}, {second.positives:,} in {other_name}"
        )
    else:
        differ.append(("labels", [first.spec.label], first.label_sum != second.label_sum))
    # In float32 if both store it.
    for dtype in sorted(first.numerical_sums.keys() & second.numerical_sums.keys())[-1:]:
        sums, other_sums = first.numerical_sums[dtype], second.numerical_sums[dtype]
        differ.append(("numbers", first.spec.numerical, sums != other_sums))
    ids = [feature.name for feature in first.spec.categorical]
    differ.append(("ids", ids, first.id_sums != second.id_sums))
    for what, features, are_other in differ:
        lines += [
            f"feature {feature} holds other {what} in {one_name} than in {other_name}"
            for feature, is_other in zip(features, are_other, strict=True)
            if is_other
        ]
    remedy = "the formats do not hold the same rows in the same order: prepare the dataset again"
    return [f"{where}: {line}; {remedy}" for line in lines]
