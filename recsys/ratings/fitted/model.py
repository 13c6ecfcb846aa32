# SPDX-License-Identifier: Apache-2.0
"""Models of ratings that are fitted in one call and kept as tensors.

torch is imported only where it is needed, so that flags are defined without it.
"""

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar

from recsys.data.sequences.histories import Sequences
from recsys.settings import declared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from recsys.ratings.fitted.stored import StoredFitted
    from recsys.ratings.model import StoredModel
    from recsys.ratings.scorer import Histories, Scorer

SettingsT = TypeVar("SettingsT")


class FittedModel(abc.ABC, Generic[SettingsT]):
    """A model of ratings that `fit` returns; see `RatingsModel`.

    Attributes:
        settings: settings of the model, including values that `fit` chose.
        name: word after `train`, and key in checkpoints, deployments and servers.
        title: name of the model in sentences.
        settings_class: dataclass of the settings, whose fields are the flags.
    """

    __slots__ = ()
    settings: SettingsT
    name: ClassVar[str]
    title: ClassVar[str]
    settings_class: ClassVar[type]

    @classmethod
    @abc.abstractmethod
    def fit(cls, sequences: Sequences, settings: SettingsT) -> Self:
        """Fits the model to the items of all histories except validation and test targets.

        Raises:
            UserError: the model needs more memory than there is.
        """

    @property
    @abc.abstractmethod
    def num_items(self) -> int:
        """I, the items of the catalogue."""

    @property
    def device(self) -> "torch.device":
        """Device of the scores: the CPU."""
        import torch

        return torch.device("cpu")

    @abc.abstractmethod
    def scorer(self, histories: "Histories") -> "Scorer":
        """Scores all items after each history; no history may be empty."""

    def validated(self, sequences: Sequences) -> float:
        """Returns NDCG@10 of the validation targets, ranked among all items."""
        from recsys.ratings.ranking.evaluate import rank_on_host
        from recsys.ratings.ranking.metrics import ranking_metrics

        ranked = rank_on_host(self, sequences, "validation", {})
        return ranking_metrics(ranked.ranks["full"], (10,))["ndcg@10"]

    @abc.abstractmethod
    def tensors(self) -> "dict[str, Tensor]":
        """Returns the tensors that a checkpoint keeps, by name."""

    @classmethod
    @abc.abstractmethod
    def of_tensors(
        cls, tensors: "Mapping[str, Tensor]", settings: SettingsT, num_items: int
    ) -> Self:
        """Builds the model around the result of `tensors`, without a copy.

        Raises:
            KeyError: a tensor is missing.
            ValueError: a tensor has another shape.
        """

    @classmethod
    @abc.abstractmethod
    def history_length(cls, settings: SettingsT) -> int:
        """Returns how many items of a history count at most; 0 means all."""

    def __str__(self) -> str:
        """Returns the settings as text for a line of the log."""
        names = (field.name for field in declared(self.settings_class))
        return ", ".join(f"{name} {getattr(self.settings, name)}" for name in names)

    def add_files(self, folder: Path) -> None:
        """Adds nothing to a checkpoint folder: `tensors` are all there is."""

    @classmethod
    def begins_with(cls, settings: SettingsT) -> "StoredModel | None":  # noqa: ARG003
        """Returns None: the fit starts from no other model."""
        return None

    @classmethod
    def open_stored(cls, path: Path) -> "StoredFitted":
        """Opens a checkpoint, or the folder of a run.

        Raises:
            CheckpointError: it is missing, damaged or belongs to another model.
        """
        from recsys.ratings.fitted.stored import StoredFitted

        return StoredFitted.open(path, cls)
