# SPDX-License-Identifier: Apache-2.0
"""Rows of a split in memory: all of them, or as many as a baseline may use."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recsys.data.click_columns import ClickColumns
from recsys.data.row_reader import BLOCK_ROWS, RowReader

_PIECE_ROWS = 1 << 14
"""Rows of a piece when only some rows are read: short enough to spread, long enough to read."""


def spread(first: int, after: int, most: int) -> list[range]:
    """Returns ranges of rows [first, after) to read in turn, of at most `most` rows together.

    If there are more rows, they are thinned to pieces at equal distances.
    """
    rows = after - first
    if rows <= most:
        starts = range(first, after, BLOCK_ROWS)
        return [range(start, min(start + BLOCK_ROWS, after)) for start in starts]
    pieces = -(-most // _PIECE_ROWS)
    starts_of = [first + piece * rows // pieces for piece in range(pieces)]
    return [range(start, start + most // pieces) for start in starts_of]


@dataclasses.dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of a split.

    Attributes:
        blocks: columns of the rows, one range after the other.
    """

    blocks: Sequence[ClickColumns]

    @classmethod
    def read(cls, reader: RowReader, ranges: Sequence[range]) -> "SplitRows":
        """Reads ranges of rows.

        Raises:
            DatasetError: a file is damaged.
        """
        return cls([reader.read(rows.start, rows.stop) for rows in ranges])

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def __add__(self, other: "SplitRows") -> "SplitRows":
        return SplitRows([*self.blocks, *other.blocks])

    @property
    def labels(self) -> npt.NDArray[np.bool_]:
        """[B] bool, True for a click."""
        return np.concatenate([block.label for block in self.blocks])
