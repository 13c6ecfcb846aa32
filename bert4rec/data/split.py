# SPDX-License-Identifier: Apache-2.0
"""The leave-one-out split: a rule over whole sequences, so nothing is stored twice.

The last item of a user is for the test, the one before for the validation, the rest for training.
Letter: U users.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from recsys.data.sequences import Sequences

Split = Literal["train", "validation", "test"]

_HELD_OUT: dict[Split, int] = {"train": 2, "validation": 2, "test": 1}
"""Items at the end of a sequence that a model may not see before it is asked."""


def known_lengths(sequences: Sequences, split: Split) -> npt.NDArray[np.int64]:
    """Returns [U]: how many items of each user precede what a split asks for.

    For `train` these are the items to train on.
    """
    return sequences.lengths - _HELD_OUT[split]


def true_items(sequences: Sequences, split: Split) -> npt.NDArray[np.int32]:
    """Returns [U], the item that `validation` or `test` asks for."""
    return sequences.test_items if split == "test" else sequences.validation_items
