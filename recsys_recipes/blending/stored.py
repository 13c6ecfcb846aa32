# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of blends: that of each model is a folder within."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.models.baselines import COUNTED_BASELINES, fit_baseline
from recsys.ratings.blend import WEIGHTS, Blend, validate_blends
from recsys.ratings.fitted.model import FittedModel
from recsys.ratings.fitted.stored import GROUP, NUM_ITEMS
from recsys.ratings.model import StoredModel
from recsys.ratings.scorer import Histories, Scorer
from recsys.train.checkpoint import MODEL, Checkpoint, read_checkpoint
from recsys.train.origin import Origin
from recsys.train.saving.write import write_checkpoint
from recsys_recipes.blending.kind import BLEND, BlendSettings
from recsys_recipes.models import stored_ratings

logger = logging.getLogger(__name__)

FIRST, SECOND = "first", "second"
"""Folders of the models within a checkpoint."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainedBlend:
    """A blend whose models are known; see `RatingsModel`.

    Attributes:
        settings: what was chosen is filled in.
        blend: the sum.
        first: checkpoint of the first model.
        second: the second one.
        validated: NDCG@10 of the validation targets of the first model, and of the blend.
    """

    settings: BlendSettings
    blend: Blend
    first: StoredModel
    second: FittedModel[Any]
    validated: tuple[float, float]

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        return self.blend.num_items

    @property
    def device(self) -> Any:
        """The host."""
        return self.blend.device

    def scorer(self, histories: Histories) -> Scorer:
        """Scores all items after each history."""
        return self.blend.scorer(histories)

    def __str__(self) -> str:
        """Returns the second model, the weights and what they gain."""
        weight, (alone, blended) = self.blend.weight, self.validated
        return (
            f"{1 - weight:g} of {self.first.checkpoint.state[MODEL]} and {weight:g} of "
            f"{self.second.name} ({self.second}); validation ndcg@10 {blended:.6f}, of the first "
            f"{alone:.6f}"
        )

    def tensors(self) -> dict[str, Tensor]:
        """Returns none: the folders of the models hold them."""
        return {}

    def add_files(self, folder: Path) -> None:
        """Writes the checkpoints of both models."""
        _copy(self.first, folder / FIRST)
        state = {MODEL: self.second.name, NUM_ITEMS: self.second.num_items}
        config = dataclasses.asdict(self.second.settings)
        write_checkpoint(folder / SECOND, {GROUP: self.second.tensors()}, state, config)


def _copy(stored: StoredModel, folder: Path) -> None:
    """Copies what a model is used by; a blend has the folders of its models."""
    checkpoint = stored.checkpoint
    own = {GROUP: checkpoint.tensors(GROUP)} if GROUP in checkpoint.groups() else {}
    write_checkpoint(folder, own, checkpoint.state, checkpoint.config)
    if isinstance(stored, StoredBlend):
        _copy(stored.first, folder / FIRST)
        _copy(stored.second, folder / SECOND)


def choose(sequences: Sequences, settings: BlendSettings) -> TrainedBlend:
    """Counts the second model, or all that may be it, and chooses by the validation targets.

    Raises:
        UserError: the one that was named needs more memory than there is.
    """
    first = stored_ratings(Path(settings.blend_of))
    is_auto = settings.blend_with == "auto"
    names = [*COUNTED_BASELINES] if is_auto else [settings.blend_with]
    others: dict[str, FittedModel[Any]] = {}
    for name in names:
        try:
            others[name] = fit_baseline(name, sequences)
        except UserError as error:
            if not is_auto:
                raise
            logger.warning("%s is left out: %s", name, error)
    model = first.open_model()
    weights = WEIGHTS if settings.weight is None else (settings.weight,)
    alone, gains = validate_blends(model, others, sequences, weights)
    name, weight = max(gains, key=lambda key: gains[key])
    if settings.weight is None and alone >= gains[name, weight]:
        weight = 0.0
    return TrainedBlend(
        dataclasses.replace(settings, blend_with=name, weight=weight),
        Blend(model, others[name], weight),
        first,
        others[name],
        (alone, gains.get((name, weight), alone)),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class StoredBlend:
    """A checkpoint of a blend; see `StoredModel`.

    Attributes:
        checkpoint: the checkpoint of any model.
        settings: of the blend.
        first: checkpoint of the first model.
        second: that of the second one.
    """

    checkpoint: Checkpoint
    settings: BlendSettings
    first: StoredModel
    second: StoredModel

    @classmethod
    def open(cls, path: Path) -> "StoredBlend":
        """Opens a checkpoint, or the folder of a run.

        Raises:
            CheckpointError: it, or that of a model, is missing, damaged or of another model.
        """
        checkpoint = read_checkpoint(path)
        checkpoint.require_model(BLEND.name, BLEND.title)
        first, second = (stored_ratings(checkpoint.path / name) for name in (FIRST, SECOND))
        return cls(checkpoint, checkpoint.section(BlendSettings), first, second)

    @property
    def path(self) -> Path:
        """Folder of the checkpoint itself, not of the run."""
        return self.checkpoint.path

    @property
    def step(self) -> int | None:
        """Steps that the first model was trained for, if it was."""
        return self.first.step

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        return self.first.num_items

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return self.first.origin

    def open_model(self) -> Blend:
        """Reads the weights of both models.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        assert self.settings.weight is not None
        return Blend(self.first.open_model(), self.second.open_model(), self.settings.weight)
