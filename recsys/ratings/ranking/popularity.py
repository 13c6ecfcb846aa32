# SPDX-License-Identifier: Apache-2.0
"""Ranks by popularity, which is the same for all users."""

import numpy as np
import numpy.typing as npt
import torch

from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.negatives import training_counts
from recsys.ratings.data.split import Split, targets_of, true_items
from recsys.ratings.ranking.evaluate import LEFT_OUT, Negatives, Ranks, seen_pairs


def popularity_ranks(
    sequences: Sequences,
    split: Split,
    negatives: Negatives,
    counts: npt.NDArray[np.int64] | None = None,
) -> dict[str, Ranks]:
    """Ranks each target by popularity, the same for every user.

    Args:
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        counts: [I] popularity of each item; by default its occurrences in the training split.

    Returns:
        Ranks in the form of `rank_targets`: for each ranking [T] int64 from 0; ties count against
        the true item.
    """
    popularity = training_counts(sequences) if counts is None else counts
    of_truth = popularity[true_items(sequences, split) - 1]
    with_seen = sequences.num_items - np.searchsorted(np.sort(popularity), of_truth) - 1
    row, seen = (
        index.numpy()
        for index in seen_pairs(sequences, split, np.arange(len(of_truth)), torch.device("cpu"))
    )
    seen_ahead = row[popularity[seen - 1] >= of_truth[row]]
    ranks = {
        "full": with_seen - np.bincount(seen_ahead, minlength=len(of_truth)),
        "full_with_seen": with_seen,
    }
    users = targets_of(sequences, split).users
    for name, items in negatives.items():
        drawn = items[users]
        ahead = (popularity[drawn.clip(1) - 1] >= of_truth[:, None]).sum(1)
        ranks[name] = np.where(drawn[:, 0] > 0, ahead, LEFT_OUT)
    return ranks
