# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of fitted models."""

import dataclasses
from pathlib import Path
from typing import Any

from recsys.ratings.fitted.model import FittedModel
from recsys.train.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from recsys.train.origin import Origin

GROUP = "model"
"""Name of the group that holds the tensors."""
NUM_ITEMS = "num_items"
"""Key of the number of items in the state."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredFitted:
    """A checkpoint of a fitted model; see `StoredModel`.

    Attributes:
        checkpoint: the generic checkpoint.
        kind: class of the model.
    """

    checkpoint: Checkpoint
    kind: type[FittedModel[Any]]
    settings: Any

    @classmethod
    def open(cls, path: Path, kind: type[FittedModel[Any]]) -> "StoredFitted":
        """Opens a checkpoint, or the folder of a run.

        Raises:
            CheckpointError: it is missing, damaged or belongs to another model.
        """
        checkpoint = read_checkpoint(path)
        checkpoint.require_model(kind.name, kind.title)
        checkpoint.check_groups((GROUP,))
        return cls(checkpoint, kind, checkpoint.section(kind.settings_class))

    @property
    def path(self) -> Path:
        """Folder of the checkpoint, not of the run."""
        return self.checkpoint.path

    @property
    def step(self) -> int | None:
        """None: the model is not trained by steps."""
        return None

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue."""
        return self.checkpoint.count(NUM_ITEMS)

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return Origin.of_checkpoint({"items": self.num_items}, self.checkpoint.state)

    def open_model(self) -> FittedModel[Any]:
        """Reads the tensors.

        Raises:
            CheckpointError: a file is missing or damaged, or the tensors do not fit the model.
        """
        tensors = self.checkpoint.tensors(GROUP)
        try:
            model = self.kind.of_tensors(tensors, self.settings, self.num_items)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}: its tensors do not fit {self.kind.title} for "
                f"{self.num_items} items: {error}",
                path=self.path,
            ) from error
        return model
