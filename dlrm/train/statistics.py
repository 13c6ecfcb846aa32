# SPDX-License-Identifier: Apache-2.0
"""Statistics of the training rows that a model contains: knots of numbers, statistics of ids."""

import numpy as np
import torch
from torch import Tensor

from dlrm.nn.id_statistics import IdStatistics
from recsys.data.quantiles import quantile_edges
from recsys.data.row_reader import BLOCK_ROWS, RowReader
from recsys.models.logistic.rows import spread

_MOST_ROWS = 1 << 20
"""Most training rows to read, evenly spread."""


def find_knots(reader: RowReader, num_rows: int, num_bins: int) -> Tensor:
    """Returns the knots of each numerical feature, see `NumericalEmbedding`.

    They are the least value, the edges of `quantile_edges`, and the largest value.

    Args:
        reader: reads the training split.
        num_rows: number of rows to use, from the first.
        num_bins: T, bins of each feature.

    Returns:
        [M, T + 1] float32, ascending; if there are fewer knots, the last one repeats.

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


def fit_id_statistics(statistics: IdStatistics, reader: RowReader, num_rows: int) -> None:
    """Computes the statistics of the ids of training rows; replaces earlier statistics.

    Args:
        statistics: updated in place.
        reader: reads the training split.
        num_rows: number of rows to use, from the first.

    Raises:
        DatasetError: a file is damaged.
    """
    device = statistics.keys.device
    ids = torch.empty(num_rows, len(reader.spec.categorical), dtype=torch.int32, device=device)
    label = torch.empty(num_rows, device=device)
    for start in range(0, num_rows, BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, num_rows))
        columns = reader.read(rows.start, rows.stop)
        of_block = np.stack(columns.categorical, 1).astype(np.int32, copy=False)
        ids[rows] = torch.from_numpy(of_block).to(device)
        label[rows] = torch.from_numpy(np.array(columns.label)).to(label)
    statistics.fit(ids, label)
