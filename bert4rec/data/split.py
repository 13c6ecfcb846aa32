# SPDX-License-Identifier: Apache-2.0
"""The leave-one-out split, computed from whole histories.

The last item of a user is the test target, the one before the validation target, and the rest is
for training.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from recsys.data.sequences import Sequences

Split = Literal["train", "validation", "test"]

_HELD_OUT: dict[Split, int] = {"train": 2, "validation": 2, "test": 1}
"""Items at the end of a history that are hidden from the model."""


def known_lengths(sequences: Sequences, split: Split) -> npt.NDArray[np.int64]:
    """Counts the items of each user before the target of a split.

    Returns:
        [U] int64; for `train`, the number of items to train on.
    """
    return sequences.lengths - _HELD_OUT[split]


def true_items(sequences: Sequences, split: Split) -> npt.NDArray[np.int32]:
    """Returns [U] int32, each user's target in `validation` or `test`."""
    return sequences.test_items if split == "test" else sequences.validation_items
