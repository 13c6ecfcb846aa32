# SPDX-License-Identifier: Apache-2.0
"""Computes initial item vectors from counts of items that occur near each other."""

import numpy as np
import torch
from scipy import sparse

from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.interactions import followers

_WINDOW = 10
_SMOOTHING, _OVERSAMPLING = 0.75, 16


def neighbour_vectors(sequences: Sequences, dim: int) -> torch.Tensor:
    """Computes vectors whose products are large for items that occur near each other.

    They are a truncated SVD of the positive pointwise mutual information of items in a window.
    Sources: Levy and Goldberg, "Neural word embedding as implicit matrix factorization", 2014; the
    exponents are those of Levy et al. 2015.

    Args:
        sequences: histories of all users.
        dim: D.

    Returns:
        [I, D] float32, of length 1; of length 0 for an item that occurs near no other one.
    """
    counts = followers(sequences, _WINDOW)
    pairs = (counts + counts.T).tocoo()
    size, off_diagonal = sequences.num_items, pairs.row != pairs.col
    row, column, times = (values[off_diagonal] for values in (pairs.row, pairs.col, pairs.data))
    of_row = np.bincount(row, times, size)
    of_column = np.maximum(of_row, 1e-12) ** _SMOOTHING
    information = np.log(times * of_column.sum() / (of_row[row] * of_column[column]))
    positive = sparse.coo_array((information.clip(0), (row, column)), shape=(size, size))
    matrix = ((positive + positive.T) / 2).tocoo()
    index = torch.from_numpy(np.stack([matrix.row, matrix.col]).astype(np.int64))
    values = torch.from_numpy(matrix.data.astype(np.float32))
    columns = min(dim + _OVERSAMPLING, size)
    sparse_matrix = torch.sparse_coo_tensor(index, values, (size, size), check_invariants=False)
    left, strength, _ = torch.svd_lowrank(sparse_matrix.coalesce(), columns, niter=4)
    vectors = torch.zeros(size, dim)
    vectors[:, : min(columns, dim)] = (left * strength.sqrt())[:, :dim]
    near_any = torch.from_numpy(np.bincount(matrix.row, matrix.data, size) > 0)
    return torch.nn.functional.normalize(vectors) * near_any[:, None]
