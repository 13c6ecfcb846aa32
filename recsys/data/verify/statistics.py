# SPDX-License-Identifier: Apache-2.0
"""Collects statistics and bad values of a split."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.data.click_columns import RawColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.verify.source import Block

_REMEDY = (
    "the feature spec does not belong to this data, or the data is damaged: prepare the dataset "
    "again"
)


class SplitStatistics:
    """Statistics of the rows added so far, in constant memory.

    Attributes:
        spec: columns of the dataset.
        num_rows: number of rows.
        positives: number of clicks.
        numerical_min: [M] float64 minima of the finite values.
        numerical_max: [M] float64 maxima of the finite values.
        id_max: [F] int64 highest ids, -1 without rows.
        id_zeros: [F] int64 number of rows with id 0.
        id_sum: [F] uint64 sum of the ids modulo 2**64, to compare formats.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        self.num_rows = 0
        self.positives = 0
        num_numerical, num_categorical = len(spec.numerical), len(spec.categorical)
        self.numerical_min = np.full(num_numerical, np.inf)
        self.numerical_max = np.full(num_numerical, -np.inf)
        self._numerical_sum = np.zeros(num_numerical)
        self._numerical_finite = np.zeros(num_numerical, np.int64)
        self.id_max = np.full(num_categorical, -1, np.int64)
        self.id_zeros = np.zeros(num_categorical, np.int64)
        self.id_sum = np.zeros(num_categorical, np.uint64)
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

    def add(self, block: Block, columns: RawColumns) -> None:
        """Adds the rows of a block."""
        self.num_rows += len(columns.label)
        label = columns.label
        # The common case, without temporaries of four times the size.
        is_clean = label.dtype == np.uint8 and label.max(initial=0) <= 1
        wrong = np.zeros(0, np.bool_) if is_clean else (label != 0) & (label != 1)
        self.positives += int(np.count_nonzero(label)) if is_clean else int((label == 1).sum())
        self._note(block, self.spec.label, wrong, label, "is neither 0 nor 1")
        if columns.numerical.shape[1]:
            self._add_numerical(block, columns.numerical)
        for i, (feature, ids) in enumerate(
            zip(self.spec.categorical, columns.categorical, strict=True)
        ):
            self._add_ids(block, i, feature.name, feature.cardinality, ids)

    def _add_numerical(self, block: Block, values: npt.NDArray[Any]) -> None:
        # NumPy may warn of a NaN that `where` leaves out.
        with np.errstate(invalid="ignore"):
            wide = np.ascontiguousarray(values.T, np.float32)  # float16 is emulated, and slow
            finite = np.isfinite(wide)
            low = np.min(wide, axis=1, initial=np.inf, where=finite)
            high = np.max(wide, axis=1, initial=-np.inf, where=finite)
            self._numerical_sum += wide.sum(axis=1, dtype=np.float64, where=finite)
        if not finite.all():
            for i, name in enumerate(self.spec.numerical):
                self._note(block, name, ~finite[i], values[:, i], "is not finite")
        self.numerical_min = np.minimum(self.numerical_min, low)
        self.numerical_max = np.maximum(self.numerical_max, high)
        self._numerical_finite += finite.sum(axis=1)

    def _add_ids(
        self, block: Block, index: int, name: str, cardinality: int, ids: npt.NDArray[Any]
    ) -> None:
        if not len(ids):
            return
        highest, lowest = int(ids.max()), int(ids.min())
        if highest >= cardinality or lowest < 0:
            wrong = (ids < 0) | (ids >= cardinality)
            self._note(block, name, wrong, ids, f"is outside [0, {cardinality})", "id")
        self.id_max[index] = max(int(self.id_max[index]), min(highest, np.iinfo(np.int64).max))
        self.id_zeros[index] += len(ids) - np.count_nonzero(ids)
        self.id_sum[index : index + 1] += ids.astype(np.int64).view(np.uint64).sum(dtype=np.uint64)

    def _note(
        self,
        block: Block,
        name: str,
        wrong: npt.NDArray[np.bool_],
        values: npt.NDArray[Any],
        what: str,
        kind: str = "value",
    ) -> None:
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        key = (name, block.path_of(name))
        first = f"row {block.first_row + int(rows[0])}: {kind} {values[rows[0]]} {what}"
        first, count = self._bad.get(key, (first, 0))
        self._bad[key] = (first, count + len(rows))


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
    if first.positives != second.positives:
        lines.append(
            f"{first.positives:,} clicks in {one_name}, {second.positives:,} in {other_name}"
        )
    for i, feature in enumerate(first.spec.categorical):
        if first.id_sum[i] != second.id_sum[i] or first.id_zeros[i] != second.id_zeros[i]:
            lines.append(
                f"feature {feature.name} holds other ids in {one_name} than in {other_name}"
            )
    remedy = "the formats were not made from the same rows: prepare the dataset again"
    return [f"{where}: {line}; {remedy}" for line in lines]
