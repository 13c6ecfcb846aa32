# SPDX-License-Identifier: Apache-2.0
"""Rules shared by training, evaluation, recommendation and export."""


def mask_item(num_items: int) -> int:
    """Returns the number of the mask item; 0 is padding."""
    return num_items + 1


def max_history_length(max_len: int, causal: bool) -> int:
    """Returns the maximum number of items that a model reads.

    Args:
        max_len: positions of the model.
        causal: the model predicts from the last item; otherwise a mask item after the history
            takes one position.
    """
    return max_len if causal else max_len - 1
