# SPDX-License-Identifier: Apache-2.0
"""The items to train on and the targets, of whole histories.

Without a temporal split the last item of a user is the test target, the one before the validation
target, and the rest is for training. `bert4rec.data.temporal` splits by time.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from recsys.data.sequences import Sequences, Targets

Split = Literal["train", "validation", "test"]

_HELD_OUT: dict[Split, int] = {"train": 2, "validation": 2, "test": 1}
"""Items at the end of a history that are hidden from the model."""


def training_lengths(sequences: Sequences) -> npt.NDArray[np.int64]:
    """Returns [U] items at the start of each history to train on."""
    if sequences.temporal is not None:
        return sequences.temporal.train_lengths
    return sequences.lengths - _HELD_OUT["train"]


def targets_of(sequences: Sequences, split: Split) -> Targets:
    """Returns the targets of `validation` or `test`, in the order of users."""
    if sequences.temporal is not None:
        temporal = sequences.temporal
        return temporal.test if split == "test" else temporal.validation
    return Targets(np.arange(sequences.num_users), sequences.lengths - _HELD_OUT[split])


def known_lengths(sequences: Sequences, split: Split) -> npt.NDArray[np.int64]:
    """Counts the items of a history before each target of a split.

    Returns:
        [T] int64; for `train`, [U] items to train on.
    """
    if split == "train":
        return training_lengths(sequences)
    return targets_of(sequences, split).known


def true_items(sequences: Sequences, split: Split) -> npt.NDArray[np.int32]:
    """Returns [T] int32, the targets of `validation` or `test`."""
    targets = targets_of(sequences, split)
    index = sequences.offsets[targets.users] + targets.known
    items: npt.NDArray[np.int32] = sequences.items[index]
    return items
