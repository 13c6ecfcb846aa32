# SPDX-License-Identifier: Apache-2.0
"""Interfaces of trained models of ratings, as programs use them."""

from pathlib import Path
from typing import Protocol

import torch

from recsys.ratings.scorer import Histories, Scorer
from recsys.train.checkpoint import Checkpoint
from recsys.train.origin import Origin


class RatingsModel(Protocol):
    """A trained model that scores the items of a catalogue after a history."""

    @property
    def num_items(self) -> int:
        """I, the items of the catalogue, numbered from 1."""

    @property
    def device(self) -> torch.device:
        """Device of the scores."""

    def scorer(self, histories: Histories) -> Scorer:
        """Scores all items after each history; no history may be empty."""


class StoredModel(Protocol):
    """A checkpoint of a model of ratings; `open_model` reads its weights."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The generic checkpoint."""

    @property
    def step(self) -> int | None:
        """Steps that the model was trained for; None if it is not trained by steps."""

    @property
    def path(self) -> Path:
        """Folder of the checkpoint, not of the run."""

    @property
    def origin(self) -> Origin:
        """The training dataset."""

    @property
    def num_items(self) -> int:
        """I."""

    def open_model(self) -> RatingsModel:
        """Reads the weights.

        Raises:
            CheckpointError: a file is missing or damaged.
            OutOfMemoryError: the weights do not fit in memory.
        """
