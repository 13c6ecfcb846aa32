# SPDX-License-Identifier: Apache-2.0
"""Knots of numerical features: quantiles of the training rows."""

import numpy as np
import torch
from torch import Tensor

from dlrm.train.baselines.rows import spread
from recsys.data.quantiles import quantile_edges
from recsys.data.row_reader import RowReader

_MOST_ROWS = 1 << 20
"""Rows that are read, evenly spread over those of training."""


def find_knots(reader: RowReader, num_rows: int, num_bins: int) -> Tensor:
    """Returns the knots of each numerical feature: see `NumericalEmbedding`.

    They are the edges of `quantile_edges`, the least value before and the largest after them.

    Args:
        reader: of the training split.
        num_rows: first rows that count.
        num_bins: T.

    Returns:
        [M, T + 1] float32.

    Raises:
        DatasetError: a file is damaged.
    """
    blocks = [reader.read(rows.start, rows.stop) for rows in spread(0, num_rows, _MOST_ROWS)]
    numbers = np.concatenate([block.numerical for block in blocks])
    knots = np.empty((numbers.shape[1], num_bins + 1), np.float32)
    for own, values in zip(knots, numbers.T, strict=True):
        distinct, counts = np.unique(values.astype(np.float32), return_counts=True)
        edges = quantile_edges(distinct.astype(np.float64), counts, num_bins)
        found = np.unique(np.array([distinct[0], *edges, distinct[-1]], np.float32))
        own[: len(found)], own[len(found) :] = found, found[-1]
    return torch.from_numpy(knots)
