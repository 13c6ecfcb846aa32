# SPDX-License-Identifier: Apache-2.0
"""Settings of a blend, and what the program of fitted models needs to run it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.models.baselines import COUNTED_BASELINES
from recsys.models.registry import FITTED
from recsys.settings import require_known, setting
from recsys.train.config import OF_TRAINING

if TYPE_CHECKING:
    from recsys.ratings.fitted.run import Kind
    from recsys.ratings.model import StoredModel
    from recsys_recipes.blending.stored import StoredBlend, TrainedBlend


MOST_ADDED = 2
"""Maximum number of models that are added to the first one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlendSettings:
    """Settings of a blend."""

    blend_of: str = setting(
        "",
        "Checkpoint, or folder of a run, of the first model, which must be trained on the same "
        "dataset",
        used_with=OF_TRAINING,
    )
    blend_with: tuple[str, ...] = setting(
        (),
        f"Models to add, one or two of {' | '.join(COUNTED_BASELINES)}; by default chosen on the "
        "validation targets",
        used_with=OF_TRAINING,
    )
    weights: tuple[float, ...] = setting(
        (),
        "Weights of these models; the first model gets the rest, up to 1. By default they are "
        "chosen in tenths on the validation targets: the most even ones within a standard error "
        "of the best NDCG@10",
        used_with=OF_TRAINING,
    )

    def __post_init__(self) -> None:
        """Refuses unknown models, and weights that do not fit them."""
        require_known(self, "blend_with", tuple(COUNTED_BASELINES))
        different = len(set(self.blend_with))
        if len(self.blend_with) > MOST_ADDED or different < len(self.blend_with):
            raise UserError(
                f"`blend_with` takes at most {MOST_ADDED} different models, got "
                f"{','.join(self.blend_with)}",
                setting="blend_with",
            )
        if not self.weights:
            return
        given = ",".join(f"{weight:g}" for weight in self.weights)
        if len(self.weights) != len(self.blend_with):
            raise UserError(
                f"`weights` {given}: give one for each model of `blend_with`, which names "
                f"{len(self.blend_with)}",
                settings=("weights", "blend_with"),
            )
        if not (min(self.weights) >= 0 and sum(self.weights) <= 1 + 1e-9):
            raise UserError(
                f"`weights` must not be negative, and must add up to at most 1, got {given}",
                setting="weights",
            )


class BlendKind:
    """Fits and opens blends; see `recsys.ratings.fitted.run.Kind`."""

    name, title = "blend", "Blend"
    settings_class = BlendSettings

    def begins_with(self, settings: BlendSettings) -> "StoredModel":
        """Returns the first model.

        Raises:
            UserError: the checkpoint is not given, is damaged, or is of a model of clicks.
        """
        from recsys_recipes.blending.stored import open_first

        if not settings.blend_of:
            raise UserError(
                "`blend_of` is needed: the run of the model to blend with a fitted one",
                setting="blend_of",
            )
        return open_first(Path(settings.blend_of))

    def fit(self, sequences: Sequences, settings: BlendSettings) -> "TrainedBlend":
        """Fits the candidate models, and chooses which to add and their weights."""
        from recsys_recipes.blending.stored import choose

        return choose(sequences, settings)

    def open_stored(self, path: Path) -> "StoredBlend":
        """Opens a checkpoint, or the folder of a run."""
        from recsys_recipes.blending.stored import StoredBlend

        return StoredBlend.open(path)


BLEND = BlendKind()
KINDS = (*FITTED, BLEND.name)
"""Models that are fitted at once, without training steps."""


def kind_of(name: str) -> "Kind":
    """Returns one of `KINDS` by its name."""
    return BLEND if name == BLEND.name else FITTED[name].load()
