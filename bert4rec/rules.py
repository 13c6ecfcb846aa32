# SPDX-License-Identifier: Apache-2.0
"""Rules that training, evaluation, recommendation and export follow alike."""


def mask_item(num_items: int) -> int:
    """Returns the number of the mask item; 0 is padding."""
    return num_items + 1


def max_history_length(max_len: int, causal: bool) -> int:
    """Returns the number of items that a model reads at most.

    Args:
        max_len: positions of the model.
        causal: the model predicts from the last item; otherwise a mask item behind the history
            takes one position.
    """
    return max_len if causal else max_len - 1
