# SPDX-License-Identifier: Apache-2.0
"""Interactions to train on, as matrices."""

from typing import Any

import numpy as np
from scipy import sparse

from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.split import is_trained_on, positions_of

Matrix = Any
"""A NumPy array or a SciPy sparse array; SciPy has no type annotations."""


def met_items(sequences: Sequences) -> Matrix:
    """Returns [U, I] sparse, 1 where the user interacted with the item in training."""
    is_trained = is_trained_on(sequences)
    users = np.repeat(np.arange(sequences.num_users), sequences.lengths)[is_trained]
    shape = (sequences.num_users, sequences.num_items)
    ones = np.ones(len(users))
    met = sparse.csr_array((ones, (users, sequences.items[is_trained] - 1)), shape=shape)
    met.data[:] = 1
    return met


def followers(sequences: Sequences, window: int) -> Matrix:
    """Counts how often each item follows another in training, weighted by their distance.

    Args:
        window: largest distance between two items, in positions; a pair counts 1 / distance.

    Returns:
        [I, I] sparse; rows are first items, columns the items that follow.
    """
    positions, is_trained = positions_of(sequences), is_trained_on(sequences)
    items, size = sequences.items - 1, sequences.num_items
    counts = sparse.csr_array((size, size))
    for distance in range(1, window + 1):
        later = np.flatnonzero((positions >= distance) & is_trained)
        pairs = items[later - distance], items[later]
        values = np.full(len(later), 1 / distance)
        counts += sparse.csr_array((values, pairs), shape=(size, size))
    return counts
