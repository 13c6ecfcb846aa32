# SPDX-License-Identifier: Apache-2.0
"""The baseline that every model has to pass: the most popular items first, for every user.

Letters: U users, I items.
"""

import numpy as np
import torch

from bert4rec.data.batches import known_windows, pack
from bert4rec.data.split import Split, true_items
from bert4rec.train.evaluate import Ranks, seen_pairs
from recsys.data.sequences import Sequences

_EVERYTHING = np.iinfo(np.int64).max


def popularity_ranks(sequences: Sequences, split: Split) -> Ranks:
    """Ranks the true item of each user by how often the items occur in the training part.

    Args:
        sequences: of all users.
        split: `validation` or `test`.

    Returns:
        [U] from 0, among the items the user has not seen; of two equally popular items the one
        with the smaller number is ahead.
    """
    cpu = torch.device("cpu")
    users = np.arange(sequences.num_users)
    training, _ = pack(sequences, known_windows(sequences, "train", users, _EVERYTHING), cpu)
    counts = np.bincount(training.numpy(), minlength=sequences.num_items + 1)[1:]
    place = np.empty(sequences.num_items + 1, np.int64)
    place[np.argsort(-counts, kind="stable") + 1] = np.arange(sequences.num_items)
    found: Ranks = place[true_items(sequences, split)]
    row, item = (pairs.numpy() for pairs in seen_pairs(sequences, split, users, cpu))
    ahead = place[item] < found[row]
    return found - np.bincount(row[ahead], minlength=sequences.num_users)
