# SPDX-License-Identifier: Apache-2.0
"""Reads the columns that an engine left, for formats that are made of them."""

from collections.abc import Iterable, Iterator

import numpy as np

from preproc.criteo.engine import EncodedColumns
from preproc.criteo.rules import NUM_NUMERICAL, Split
from recsys.data.click_columns import ClickColumns
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader


def read_rows(
    columns: EncodedColumns, split: Split, spec: FeatureSpec, ranges: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, ClickColumns]]:
    """Yields rows of a split with float32 features (mapped, not read).

    Args:
        columns: with float32 features.
        split: which one.
        spec: the columns.
        ranges: first row and end of each piece.

    Yields:
        The first row of a piece, and its rows.
    """
    assert columns.float32 is not None
    reader = SplitBinaryReader(columns.folder, split, spec, access="memmap")
    try:
        for start, stop in ranges:
            narrow = reader.read(start, stop)
            numerical = np.memmap(
                columns.float32 / split,
                dtype="<f4",
                mode="r",
                offset=start * NUM_NUMERICAL * 4,
                shape=(stop - start, NUM_NUMERICAL),
            )
            yield start, ClickColumns(narrow.label, numerical, narrow.categorical)
    finally:
        reader.close()
