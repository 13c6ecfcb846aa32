# SPDX-License-Identifier: Apache-2.0
"""Settings of the objective, the optimizers and the precision of a step."""

import dataclasses
from typing import Literal

from bert4rec.config.fraction import require_fraction
from recsys.errors import UserError
from recsys.settings import Not, require_not_negative, require_positive, setting

Objective = Literal["cloze", "causal", "hybrid"]
MaskLastOf = Literal["sequences", "batches"]

_MASKED = {"objective": Not("causal")}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """Settings of the training objective."""

    objective: Objective = setting(
        "cloze",
        "Predict hidden items from both sides (cloze), the next item from those before it "
        "(causal), or both in turn (hybrid)",
    )
    mask_prob: float = setting(0.15, "Fraction of the items that are targets", used_with=_MASKED)
    mask_last_prob: float = setting(
        0.0, "Fraction of the sequences whose last item is the only target", used_with=_MASKED
    )
    mask_last_of: MaskLastOf = setting(
        "sequences",
        "Choose these sequences one by one, or whole batches of them",
        used_with={"mask_last_prob": Not(0.0)},
    )
    mask_replace: float = setting(
        0.8, "Fraction of the targets that the mask item replaces", used_with=_MASKED
    )
    random_replace: float = setting(
        0.2,
        "Fraction of the targets that a random item replaces; the rest stay visible",
        used_with=_MASKED,
    )
    loss: Literal["full", "sampled", "gbce"] = setting(
        "full", "Softmax over all items, over sampled ones, or gBCE over sampled ones"
    )
    num_negatives: int = setting(
        4096,
        "Negative items that a batch shares under --loss sampled and gbce",
        used_with={"loss": ("sampled", "gbce")},
    )
    popularity_correction: float = setting(
        0.0,
        "Under --loss full, keep this fraction of the items' log popularity out of the scores: 0 "
        "predicts the next item, 1 what is particular to the user",
    )

    def __post_init__(self) -> None:
        """Refuses probabilities outside [0, 1]."""
        for name in ("mask_prob", "mask_last_prob", "mask_replace", "random_replace"):
            require_fraction(self, name)
        if self.mask_replace + self.random_replace > 1 + 1e-9:
            raise UserError(
                f"`mask_replace` {self.mask_replace} and `random_replace` {self.random_replace} "
                "must not add up to more than 1",
                settings=("mask_replace", "random_replace"),
            )
        require_positive(self, "num_negatives")
        require_fraction(self, "popularity_correction")
        if self.popularity_correction and self.loss != "full":
            raise UserError(
                f"`popularity_correction` {self.popularity_correction:g} changes the softmax over "
                f"all items, which `loss` {self.loss} does not compute: use `loss` full",
                settings=("popularity_correction", "loss"),
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Settings of the optimizers."""

    lr: float = setting(1e-3, "Learning rate")
    lr_schedule: Literal["step", "cosine", "linear"] = setting(
        "step",
        "Learning rate: multiplied by --gamma every --decay_step epochs (step), or falling to zero "
        "along a cosine or a line",
    )
    decay_step: int = setting(
        25,
        "Epochs between two decays of the learning rate under --lr_schedule step",
        used_with={"lr_schedule": ("step",), "gamma": Not(1.0)},
    )
    gamma: float = setting(
        1.0, "Factor of each decay under --lr_schedule step", used_with={"lr_schedule": ("step",)}
    )
    warmup_steps: float = setting(
        0, "Steps of linear warmup; a value below 1 is a fraction of the run's steps"
    )
    weight_decay: float = setting(0.0, "Weight decay (decoupled)")
    clip_norm: float | None = setting(None, "Maximum norm of a step's gradient")
    accumulation_steps: int = setting(
        1, "Batches per process whose gradients are added up for one step"
    )

    def __post_init__(self) -> None:
        """Refuses negative rates."""
        require_positive(self, "decay_step", "accumulation_steps")
        require_not_negative(self, "lr", "gamma", "weight_decay", "warmup_steps")
        if self.warmup_steps > 1 and self.warmup_steps % 1:
            raise UserError(
                f"`warmup_steps` must be a whole number, or a fraction below 1, got "
                f"{self.warmup_steps}",
                setting="warmup_steps",
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(
                f"`clip_norm` must be positive, got {self.clip_norm}", setting="clip_norm"
            )
