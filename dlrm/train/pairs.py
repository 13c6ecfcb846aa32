# SPDX-License-Identifier: Apache-2.0
"""Counts of pairs of ids among the training rows."""

import numpy as np
import torch

from dlrm.nn.pair_counts import PairCounts
from recsys.data.row_reader import BLOCK_ROWS, RowReader


def count_pairs(pair_counts: PairCounts, reader: RowReader, num_rows: int) -> None:
    """Counts the pairs of ids of training rows, in place of those of earlier ones.

    Args:
        pair_counts: receives the counts.
        reader: of the training split.
        num_rows: first rows that count.

    Raises:
        DatasetError: a file is damaged.
    """
    pair_counts.reset()
    for start in range(0, num_rows, BLOCK_ROWS):
        columns = reader.read(start, min(start + BLOCK_ROWS, num_rows)).categorical
        ids = torch.from_numpy(np.stack(columns, 1).astype(np.int64, copy=False))
        pair_counts.count(ids.to(pair_counts.counts.device))
    pair_counts.finish()
