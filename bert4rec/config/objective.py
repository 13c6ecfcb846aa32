# SPDX-License-Identifier: Apache-2.0
"""Settings of the training objective."""

import dataclasses
from typing import Literal

from bert4rec.config.fraction import require_fraction
from recsys.errors import UserError
from recsys.settings import require_not_negative, require_positive, setting

Objective = Literal["cloze", "causal", "hybrid"]
MaskLastOf = Literal["sequences", "batches"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """Settings of the training objective."""

    objective: Objective = setting(
        "cloze", "Hidden items from both sides, the next item from one side, or both in turn"
    )
    mask_prob: float = setting(0.15, "Fraction of the items that are targets")
    mask_last_prob: float = setting(
        0.0, "Fraction of the sequences whose last item is the only target"
    )
    mask_last_of: MaskLastOf = setting(
        "sequences", "Draw these sequences one by one, or in whole batches"
    )
    mask_replace: float = setting(0.8, "Fraction of the targets that the mask item replaces")
    random_replace: float = setting(
        0.2, "Fraction of the targets that a random item replaces; the rest stay visible"
    )
    loss: Literal["full", "sampled", "gbce"] = setting(
        "full", "Softmax over all items, over sampled ones, or gBCE over sampled ones"
    )
    num_negatives: int = setting(4096, "Negatives of --loss sampled and gbce, shared by a batch")
    negative_sampler: Literal["uniform", "popular"] = setting(
        "uniform", "How negatives are drawn; their probability is corrected for (logQ)"
    )
    focal_gamma: float = setting(
        0.0,
        "Under --loss full count well predicted targets less: cross entropy times (1 - p)^gamma",
    )
    popularity_correction: float = setting(
        0.0,
        "Under --loss full learn scores that leave out this much of the log popularity of the "
        "items: 0 predicts the next item, 1 what is particular to a user",
    )
    gbce_calibration: float = setting(0.75, "Calibration of --loss gbce, its t")

    def __post_init__(self) -> None:
        """Refuses probabilities outside [0, 1]."""
        for name in ("mask_prob", "mask_last_prob", "mask_replace", "random_replace"):
            require_fraction(self, name)
        require_fraction(self, "gbce_calibration")
        if self.mask_replace + self.random_replace > 1 + 1e-9:
            raise UserError(
                f"`mask_replace` {self.mask_replace} and `random_replace` {self.random_replace} "
                "must not add up to more than 1"
            )
        require_positive(self, "num_negatives")
        require_not_negative(self, "focal_gamma")
        require_fraction(self, "popularity_correction")
        if self.popularity_correction and self.loss != "full":
            raise UserError(
                f"`popularity_correction` {self.popularity_correction:g} changes the softmax over "
                f"all items: use `loss` full, or change `negative_sampler` of `loss` {self.loss}"
            )
        if self.focal_gamma and self.loss != "full":
            raise UserError(
                f"`focal_gamma` {self.focal_gamma:g} needs the probability among all items, which "
                f"`loss` {self.loss} does not compute: use `loss` full or `focal_gamma` 0"
            )
