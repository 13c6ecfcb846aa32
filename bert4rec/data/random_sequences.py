# SPDX-License-Identifier: Apache-2.0
"""The dataset `random`: noise of any size, to measure speed.

Letters: U users.
"""

import numpy as np

from recsys.data.sequences import MIN_LENGTH, Sequences


def random_sequences(
    num_users: int, num_items: int, num_interactions: int, min_user_count: int, seed: int
) -> Sequences:
    """Draws interactions uniformly, then leaves out users with too few.

    Args:
        num_users: before any is left out.
        num_items: of the catalogue, whether they are drawn or not.
        num_interactions: in all.
        min_user_count: shortest sequence kept, 3 at least.
        seed: of the draws.

    Raises:
        ValueError: no user is left.
    """
    generator = np.random.default_rng(seed)
    owners = generator.integers(0, num_users, num_interactions, dtype=np.int32)
    items = generator.integers(1, num_items + 1, num_interactions, dtype=np.int32)
    lengths = np.bincount(owners, minlength=num_users)
    # Items are independent of their place: who gets how many is all that matters.
    kept = lengths[lengths >= max(min_user_count, MIN_LENGTH)]
    if not len(kept):
        raise ValueError(
            f"--dataset_name random: no user of {num_users} got --min_user_count {min_user_count} "
            f"of {num_interactions} interactions; raise --random_size or lower "
            "--random_user_count"
        )
    offsets = np.concatenate([[0], kept.cumsum()])
    return Sequences(items[: offsets[-1]], offsets, num_items)
