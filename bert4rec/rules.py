# SPDX-License-Identifier: Apache-2.0
"""Rules that training, evaluation, recommendation and export have in common."""


def mask_item(num_items: int) -> int:
    """Returns the number of the mask item; 0 is padding."""
    return num_items + 1


def room_for_items(max_len: int, causal: bool) -> int:
    """Returns the longest history that a model sees.

    Unless it predicts causally, the mask behind the history takes one of its positions.

    Args:
        max_len: positions of the model.
        causal: the model predicts from the last item, without a mask behind it.
    """
    return max_len if causal else max_len - 1
