# SPDX-License-Identifier: Apache-2.0
"""Samples the rows of a split: click rates of its parts, and the share of id 0."""

import dataclasses
import itertools
import math

import numpy as np
import numpy.typing as npt

from recsys.data.row_reader import RowReader

PARTS = 10
_PART_ROWS = 1 << 14
"""Most rows to read from the middle of each part: all of a small split, few of a large one."""
_SURE = 4
"""Least standard errors between two rates for a difference that is not chance."""
_LEAST_ODDS_RATIO = 1.5
"""Least odds ratio of two click rates to report: more than that between days of a week."""
_LEAST_SHARE = 0.1
"""Least difference of two shares of id 0 to report: more than that of rows over time."""


@dataclasses.dataclass(frozen=True, slots=True)
class SplitSample:
    """Counts over rows from ten equal parts of a split.

    Attributes:
        rows: [parts] number of rows read from each part.
        clicks: [parts] number of clicks among them.
        ids: [tables] number of ids read for each table.
        zeros: [tables] how many of them are 0.
    """

    rows: npt.NDArray[np.int64]
    clicks: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    zeros: npt.NDArray[np.int64]

    @classmethod
    def read(cls, reader: RowReader, num_rows: int) -> "SplitSample":
        """Reads a sample of the first rows of a split.

        Raises:
            DatasetError: a file is damaged.
        """
        edges = [part * num_rows // PARTS for part in range(PARTS + 1)]
        rows, clicks = [], []
        ids, zeros = (np.zeros(len(reader.spec.table_sizes), np.int64) for _ in range(2))
        for first, after in itertools.pairwise(edges):
            count = min(after - first, _PART_ROWS)
            if not count:
                continue
            start = first + (after - first - count) // 2
            columns = reader.read(start, start + count)
            rows.append(count)
            clicks.append(np.count_nonzero(columns.label))
            of_tables = [*columns.categorical, *(each.ids for each in columns.lists)]
            for table, read in enumerate(of_tables):
                ids[table] += len(read)
                zeros[table] += len(read) - np.count_nonzero(read)
        return cls(np.array(rows, np.int64), np.array(clicks, np.int64), ids, zeros)

    def drift(self) -> tuple[int, int] | None:
        """Returns the parts with the lowest and highest click rate if these differ much.

        The difference must be more than chance, and the odds must differ by half. Otherwise it
        returns None.
        """
        if not len(self.rows):
            return None
        rates = self.clicks / self.rows
        low, high = int(rates.argmin()), int(rates.argmax())
        rate = self.clicks.sum() / self.rows.sum()
        error = math.sqrt(rate * (1 - rate) * (1 / self.rows[low] + 1 / self.rows[high]))
        is_sure = rates[high] - rates[low] > _SURE * error
        # Compares the ratio of the odds.
        more = rates[high] * (1 - rates[low]) > _LEAST_ODDS_RATIO * rates[low] * (1 - rates[high])
        return (low, high) if is_sure and more else None

    def other_shares(self, other: "SplitSample") -> list[int]:
        """Returns the tables whose share of id 0 differs from that of another split.

        The largest difference comes first.
        """
        counted = np.flatnonzero((self.ids > 0) & (other.ids > 0))
        here, there = (s.zeros[counted] / s.ids[counted] for s in (self, other))
        both = (self.zeros + other.zeros)[counted] / (self.ids + other.ids)[counted]
        error = np.sqrt(both * (1 - both) * (1 / self.ids[counted] + 1 / other.ids[counted]))
        gap = np.abs(here - there)
        order = np.argsort(-gap, kind="stable")
        differs = gap > np.maximum(_LEAST_SHARE, _SURE * error)
        return [int(table) for table in counted[order[differs[order]]]]
