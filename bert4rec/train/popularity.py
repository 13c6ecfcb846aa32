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
        [U] int64 from 0, among the items the user has not seen; the smaller number wins ties.
    """
    cpu = torch.device("cpu")
    users = np.arange(sequences.num_users)
    training, _ = pack(sequences, known_windows(sequences, "train", users, _EVERYTHING), cpu)
    counts = np.bincount(training.numpy(), minlength=sequences.num_items + 1)[1:]
    rank_of_item = np.empty(sequences.num_items + 1, np.int64)
    rank_of_item[np.argsort(-counts, kind="stable") + 1] = np.arange(sequences.num_items)
    ranks: Ranks = rank_of_item[true_items(sequences, split)]
    row, item = (pairs.numpy() for pairs in seen_pairs(sequences, split, users, cpu))
    ahead = rank_of_item[item] < ranks[row]
    return ranks - np.bincount(row[ahead], minlength=sequences.num_users)
