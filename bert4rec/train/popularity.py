# SPDX-License-Identifier: Apache-2.0
"""Popularity baseline: the most popular items first, for every user."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from bert4rec.data.negative_sampler import training_counts
from bert4rec.data.split import Split, targets_of, true_items
from bert4rec.train.evaluate import LEFT_OUT, Ranks, seen_pairs
from recsys.data.sequences import Sequences


def popularity_ranks(
    sequences: Sequences,
    split: Split,
    negatives: Mapping[str, npt.NDArray[np.int32]],
    counts: npt.NDArray[np.int64] | None = None,
) -> dict[str, Ranks]:
    """Ranks each target by popularity.

    Args:
        sequences: histories of all users.
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        counts: [I] popularity of each item; by default its occurrences in the training split.

    Returns:
        The ranks that `rank_split` returns for a model: [T] int64 from 0 by kind of ranking; ties
        count against the true item.
    """
    counts = training_counts(sequences) if counts is None else counts
    of_truth = counts[true_items(sequences, split) - 1]
    with_seen = sequences.num_items - np.searchsorted(np.sort(counts), of_truth) - 1
    targets = targets_of(sequences, split)
    pairs = seen_pairs(sequences, split, np.arange(len(targets)), torch.device("cpu"))
    row, item = (of_pair.numpy() for of_pair in pairs)
    seen_ahead = np.bincount(row[counts[item - 1] >= of_truth[row]], minlength=len(targets))
    ranks = {"full": with_seen - seen_ahead, "full_with_seen": with_seen}
    for name, others in negatives.items():
        drawn = others[targets.users]
        among = (counts[drawn - 1] >= of_truth[:, None]).sum(1)
        ranks[name] = np.where(drawn[:, 0] > 0, among, LEFT_OUT)
    return ranks
