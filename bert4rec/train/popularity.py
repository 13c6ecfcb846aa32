# SPDX-License-Identifier: Apache-2.0
"""Popularity baseline: the most popular items first, for every user."""

import numpy as np
import torch

from bert4rec.data.batches import known_windows, pack
from bert4rec.data.split import Split, true_items
from bert4rec.train.evaluate import Ranks, seen_pairs
from recsys.data.sequences import Sequences

_EVERYTHING = np.iinfo(np.int64).max


def popularity_ranks(sequences: Sequences, split: Split) -> Ranks:
    """Ranks each user's true item by popularity in the training split.

    Args:
        sequences: histories of all users.
        split: `validation` or `test`.

    Returns:
        [U] int64 from 0, among the items the user has not seen; ties count against the true item.
    """
    cpu = torch.device("cpu")
    users = np.arange(sequences.num_users)
    training, _ = pack(sequences, known_windows(sequences, "train", users, _EVERYTHING), cpu)
    counts = np.bincount(training.numpy(), minlength=sequences.num_items + 1)[1:]
    of_truth = counts[true_items(sequences, split) - 1]
    as_popular = sequences.num_items - np.searchsorted(np.sort(counts), of_truth)
    row, item = (pairs.numpy() for pairs in seen_pairs(sequences, split, users, cpu))
    seen_ahead = np.bincount(row[counts[item - 1] >= of_truth[row]], minlength=len(users))
    return as_popular - 1 - seen_ahead
