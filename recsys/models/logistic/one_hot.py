# SPDX-License-Identifier: Apache-2.0
"""Rows of a click log as a sparse matrix: one column per id and per bin of a number."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from recsys.data.click_columns import ClickColumns
from recsys.models.logistic.rows import SplitRows

Matrix = Any
"""A sparse array; SciPy has no type annotations."""

_BINS = 32
_QUANTILE_ROWS = 1 << 18
_MOST_COLUMNS = 1 << 21
"""Bounds the optimizer's vectors: the rarest ids of a feature share one column."""


@dataclasses.dataclass(frozen=True, slots=True)
class OneHot:
    """Columns of the bins of numbers, and of the ids that occur in training rows.

    Attributes:
        edges: ascending bin edges of each number.
        columns: for each categorical feature, lists included, [cardinality] column of each id; ids
            that do not occur in training rows, and the rarest of many, share one column.
        width: number of columns.
    """

    edges: Sequence[npt.NDArray[np.float32]]
    columns: Sequence[npt.NDArray[np.int32]]
    width: int

    @classmethod
    def fit(cls, rows: SplitRows, cardinalities: Sequence[int]) -> "OneHot":
        """Finds the columns of training rows.

        Args:
            rows: training rows.
            cardinalities: cardinalities of the categorical features, lists last.
        """
        numbers = np.concatenate([block.numerical for block in rows.blocks])
        every = max(len(numbers) // _QUANTILE_ROWS, 1)
        edges = [_edges(column.astype(np.float32)) for column in numbers[::every].T]
        width = sum(len(each) + 1 for each in edges)
        counts = [np.zeros(size, np.int64) for size in cardinalities]
        for block in rows.blocks:
            of_lists = [each.ids for each in block.lists]
            for count, ids in zip(counts, [*block.categorical, *of_lists], strict=True):
                count += np.bincount(ids % len(count), minlength=len(count))
        least = 1
        while sum(np.count_nonzero(each >= least) for each in counts) > _MOST_COLUMNS:
            least += 1
        columns = []
        for each in counts:
            is_kept = each >= least
            kept = int(np.count_nonzero(is_kept))
            column = np.full(len(each), width + kept, np.int32)
            column[is_kept] = np.arange(width, width + kept)
            columns.append(column)
            width += kept + 1
        return cls(edges, columns, width)

    def matrix(self, blocks: Sequence[ClickColumns]) -> Matrix:
        """Returns [B, width] rows in CSR, with a 1 for the bin or id of each feature.

        The ids of a list have their factors in the list's mean or sum instead.
        """
        return sparse.vstack([self._of_block(block) for block in blocks], format="csr")

    def _of_block(self, block: ClickColumns) -> Matrix:
        rows, single = len(block), len(self.edges) + len(block.categorical)
        index = np.empty((rows, single), np.int32)
        begin = 0
        for number, edges in enumerate(self.edges):
            values = block.numerical[:, number].astype(np.float32)
            index[:, number] = begin + np.searchsorted(edges, values, side="right")
            begin += len(edges) + 1
        for feature, ids in enumerate(block.categorical):
            index[:, len(self.edges) + feature] = self._columns(feature, ids)
        starts = np.arange(rows + 1) * single
        shape = (rows, self.width)
        matrix = sparse.csr_array((np.ones(index.size), index.ravel(), starts), shape=shape)
        for number, lists in enumerate(block.lists):
            ids = self._columns(len(block.categorical) + number, lists.ids)
            factors = lists.factors().astype(np.float64)
            matrix = matrix + sparse.csr_array((factors, ids, lists.offsets), shape=shape)
        return matrix

    def _columns(self, feature: int, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        columns = self.columns[feature]
        found: npt.NDArray[np.int32] = columns[ids % len(columns)]  # the modulo of `hash_indices`
        return found


def _edges(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Cuts values into bins: one per frequent value, the others into bins of equally many rows."""
    distinct, times = np.unique(values, return_counts=True)
    frequent = distinct[times * _BINS >= len(values)]
    others = values[~np.isin(values, frequent)]
    ranks = np.arange(_BINS) / _BINS
    quantiles = np.quantile(others, ranks, method="inverted_cdf") if len(others) else others
    after_frequent = np.nextafter(frequent, np.float32(np.inf))
    edges = np.concatenate([quantiles, frequent, after_frequent])
    return np.unique(edges.astype(np.float32))
