# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of blends, with a folder for the checkpoint of each model."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from recsys.data.sequences.histories import Sequences
from recsys.errors import UserError
from recsys.models.baselines import COUNTED_BASELINES, fit_baseline
from recsys.ratings.blend import Blend, Weights, gains_of, most_even, possible_weights
from recsys.ratings.fitted.model import FittedModel
from recsys.ratings.fitted.stored import GROUP, NUM_ITEMS
from recsys.ratings.model import StoredModel
from recsys.ratings.scorer import Histories, Scorer
from recsys.train.checkpoint import MODEL, Checkpoint, read_checkpoint
from recsys.train.origin import Origin
from recsys.train.saving.write import write_checkpoint
from recsys_recipes.blending.kind import BLEND, MOST_ADDED, BlendSettings
from recsys_recipes.models import model_of, stored_ratings

logger = logging.getLogger(__name__)

MEMBERS = ("first", "second", "third")
"""Folders of the models within a checkpoint."""

FIRST = MEMBERS[0]


def open_first(path: Path) -> StoredModel:
    """Opens the first model of a blend.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        UserError: the checkpoint is of a model of clicks.
    """
    model = model_of(path)
    if model.data != "ratings":
        raise UserError(
            f"`blend_of` {path}: holds {model.title}, a model of clicks, but this blend is for "
            "ratings; `recsys-recipes train blend_clicks` adds to a DLRM",
            setting="blend_of",
        )
    return stored_ratings(path)


@dataclasses.dataclass(frozen=True, slots=True)
class TrainedBlend:
    """A blend whose models and weights are chosen; see `RatingsModel`.

    Attributes:
        settings: settings, with the chosen models and weights filled in.
        blend: the sum.
        first: checkpoint of the first model.
        added: the other models.
        validated: NDCG@10 on the validation targets, of the first model and of the blend; None if
            the weights were given.
    """

    settings: BlendSettings
    blend: Blend
    first: StoredModel
    added: Sequence[FittedModel[Any]]
    validated: tuple[float, float] | None

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
        """Returns the weights, the models and their gain in words."""
        names = [self.first.checkpoint.state[MODEL], *(f"{m.name} ({m})" for m in self.added)]
        parts = [f"{w:g} of {n}" for w, n in zip(self.blend.weights, names, strict=True)]
        if self.validated is None:
            return " + ".join(parts)
        alone, blended = self.validated
        return f"{' + '.join(parts)}; validation ndcg@10 {blended:.6f}, of the first {alone:.6f}"

    def tensors(self) -> dict[str, Tensor]:
        """Returns an empty dict: the tensors are in the folders of the models."""
        return {}

    def add_files(self, folder: Path) -> None:
        """Writes the checkpoints of the models."""
        _copy(self.first, folder / FIRST)
        for name, model in zip(MEMBERS[1:], self.added, strict=False):
            state = {MODEL: model.name, NUM_ITEMS: model.num_items}
            config = dataclasses.asdict(model.settings)
            write_checkpoint(folder / name, {GROUP: model.tensors()}, state, config)


def _copy(stored: StoredModel, folder: Path) -> None:
    """Copies what is needed to use a model; for a blend, also the folders of its models."""
    checkpoint = stored.checkpoint
    own = {GROUP: checkpoint.tensors(GROUP)} if GROUP in checkpoint.groups() else {}
    write_checkpoint(folder, own, checkpoint.state, checkpoint.config)
    if isinstance(stored, StoredBlend):
        for name, member in zip(MEMBERS, stored.members, strict=False):
            _copy(member, folder / name)


def choose(sequences: Sequences, settings: BlendSettings) -> TrainedBlend:
    """Fits the models to add, or all candidates, and chooses on the validation targets.

    Raises:
        UserError: a model that the user named needs more memory than is available, or there are no
            validation targets.
    """
    stored = open_first(Path(settings.blend_of))
    others: dict[str, FittedModel[Any]] = {}
    for name in settings.blend_with or COUNTED_BASELINES:
        try:
            others[name] = fit_baseline(name, sequences)
        except UserError as error:
            if settings.blend_with:
                raise
            logger.warning("%s is left out: %s", name, error)
    first, validated = stored.open_model(), None
    chosen: Weights = dict(zip(settings.blend_with, settings.weights, strict=False))
    if not settings.weights:
        possible = possible_weights(FIRST, [*others], MOST_ADDED)
        gains = gains_of({FIRST: first, **others}, sequences, possible)
        index, of_first = most_even(possible, gains), possible.index({FIRST: 1.0})
        validated = float(gains[of_first].mean()), float(gains[index].mean())
        chosen = {name: weight for name, weight in possible[index].items() if name != FIRST}
    added, weights = [others[name] for name in chosen], (*chosen.values(),)
    return TrainedBlend(
        dataclasses.replace(settings, blend_with=(*chosen,), weights=weights),
        Blend([first, *added], shares_of(weights)),
        stored,
        added,
        validated,
    )


def shares_of(weights: Sequence[float]) -> list[float]:
    """Returns the weights of all models: the first gets what the others leave of 1."""
    return [max(1 - sum(weights), 0.0), *weights]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredBlend:
    """A checkpoint of a blend; see `StoredModel`.

    Attributes:
        checkpoint: the underlying checkpoint.
        settings: settings of the blend.
        members: checkpoints of the models.
    """

    checkpoint: Checkpoint
    settings: BlendSettings
    members: Sequence[StoredModel]

    @classmethod
    def open(cls, path: Path) -> "StoredBlend":
        """Opens a checkpoint, or the folder of a run.

        Raises:
            CheckpointError: the checkpoint, or that of one of its models, is missing, damaged or
                of another model.
        """
        checkpoint = read_checkpoint(path)
        checkpoint.require_model(BLEND.name, BLEND.title)
        settings = checkpoint.section(BlendSettings)
        names = MEMBERS[: 1 + len(settings.weights)]
        return cls(checkpoint, settings, [stored_ratings(checkpoint.path / n) for n in names])

    @property
    def path(self) -> Path:
        """Folder of the checkpoint itself, not of the run."""
        return self.checkpoint.path

    @property
    def step(self) -> int | None:
        """Number of steps that the first model was trained for; None if it has no steps."""
        return self.members[0].step

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        return self.members[0].num_items

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return self.members[0].origin

    def open_model(self) -> Blend:
        """Reads the weights of the models.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        models = [member.open_model() for member in self.members]
        return Blend(models, shares_of(self.settings.weights))
