# SPDX-License-Identifier: Apache-2.0
"""Items among which sampled rankings rank a target."""

import numpy as np
import numpy.typing as npt

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.ratings.data.negatives import draw_negatives
from recsys.ratings.data.split import targets_of
from recsys.ratings.ranking.metrics import SEED
from recsys.train.config import SettingsOfRun
from recsys.train.recipe import PrintLine


def negatives_of_targets(
    sequences: Sequences, config: SettingsOfRun, print_line: PrintLine
) -> dict[str, npt.NDArray[np.int32]]:
    """Draws the negatives of the sampled rankings and reports the users left out.

    Args:
        config: settings of the run, including those of the evaluation.

    Returns:
        Name of a ranking -> [U, S] items; empty if no user has enough items left.

    Raises:
        UserError: the user asked for more negatives than any user has left.
    """
    count = config.to_dict()["num_eval_negatives"]
    negatives = {
        name: draw_negatives(sequences, count, by_popularity=name == "popular", seed=SEED)
        for name in ("popular", "uniform")
    }
    is_ranked = negatives["uniform"][:, 0] > 0
    left_out = f"{np.sum(~is_ranked):,} of {sequences.num_users:,} users"
    why = (
        f"met so many of {sequences.num_items:,} items that fewer than `num_eval_negatives` "
        f"{count} are left"
    )
    targets = (targets_of(sequences, split).users for split in ("validation", "test"))
    if not all(is_ranked[users].any() for users in targets if len(users)):
        if "num_eval_negatives" in config.explicit:
            raise UserError(f"{left_out} {why}; ask for fewer")
        print_line(f"no sampled rankings: {left_out} {why}")
        return {}
    if not is_ranked.all():
        print_line(f"the sampled rankings leave out {left_out}, who {why}")
    return negatives
