# SPDX-License-Identifier: Apache-2.0
"""How a blend is chosen: its settings, and what the program of fitted models needs of it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.models.baselines import COUNTED_BASELINES
from recsys.models.registry import FITTED
from recsys.settings import setting
from recsys.train.config import OF_TRAINING

if TYPE_CHECKING:
    from recsys.ratings.fitted.run import Kind
    from recsys.ratings.model import StoredModel
    from recsys_recipes.blending.stored import StoredBlend, TrainedBlend


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlendSettings:
    """Settings of a blend."""

    blend_of: str = setting(
        "",
        "Checkpoint, or folder of a run, of the first model, which is trained on the same dataset",
        used_with=OF_TRAINING,
    )
    blend_with: str = setting(
        "auto",
        f"Second model: {' | '.join(COUNTED_BASELINES)}; auto takes the best by the validation "
        "targets",
        used_with=OF_TRAINING,
    )
    weight: float | None = setting(
        None,
        "Weight of the second model, between 0 and 1; by default the tenth with the best NDCG@10 "
        "of the validation targets",
        used_with=OF_TRAINING,
    )

    def __post_init__(self) -> None:
        """Refuses weights outside [0, 1]."""
        if self.blend_with not in ("auto", *COUNTED_BASELINES):
            raise UserError(
                f"`blend_with` must be auto, {' or '.join(COUNTED_BASELINES)}, got "
                f"{self.blend_with!r}",
                setting="blend_with",
            )
        if self.weight is not None and not 0 <= self.weight <= 1:
            raise UserError(f"`weight` must lie in [0, 1], got {self.weight:g}", setting="weight")


class BlendKind:
    """Fits and opens blends; see `recsys.ratings.fitted.run.Kind`."""

    name, title = "blend", "Blend"
    settings_class = BlendSettings

    def begins_with(self, settings: BlendSettings) -> "StoredModel":
        """Returns the first model.

        Raises:
            UserError: it is not named, or damaged.
        """
        from recsys_recipes.models import stored_ratings

        if not settings.blend_of:
            raise UserError(
                "`blend_of` is needed: the run of the model to blend with a fitted one",
                setting="blend_of",
            )
        return stored_ratings(Path(settings.blend_of))

    def fit(self, sequences: Sequences, settings: BlendSettings) -> "TrainedBlend":
        """Counts the second model, and chooses it and its weight."""
        from recsys_recipes.blending.stored import choose

        return choose(sequences, settings)

    def open_stored(self, path: Path) -> "StoredBlend":
        """Opens a checkpoint, or the folder of a run."""
        from recsys_recipes.blending.stored import StoredBlend

        return StoredBlend.open(path)


BLEND = BlendKind()
KINDS = (*FITTED, BLEND.name)
"""Models without a training by steps."""


def kind_of(name: str) -> "Kind":
    """Returns one of `KINDS` by its name."""
    return BLEND if name == BLEND.name else FITTED[name].load()
