# SPDX-License-Identifier: Apache-2.0
"""Fits and stores blends of clicks; a checkpoint has a folder for that of each model."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dlrm.model.clicks import StoredClicks
from dlrm.model.network import Dlrm
from dlrm.model.weights import DlrmCheckpoint, weights_of
from dlrm.train.baselines.fit_rows import FitRows
from recsys.errors import UserError
from recsys.models.logistic.regression import log_losses, minimize
from recsys.train.checkpoint import MODEL, CheckpointError, read_checkpoint
from recsys.train.recipe import PrintLine
from recsys.train.saving.write import write_checkpoint
from recsys_recipes.blending.clicks.kind import BLEND_CLICKS, ClicksBlendSettings
from recsys_recipes.blending.clicks.network import ClicksBlend
from recsys_recipes.blending.stored import MEMBERS
from recsys_recipes.logistic.config import LogisticSettings
from recsys_recipes.logistic.fit import FittedLogistic, fit
from recsys_recipes.logistic.kind import LOGISTIC
from recsys_recipes.logistic.recipe import score_rows
from recsys_recipes.logistic.stored import StoredLogistic
from recsys_recipes.models import MODELS, model_of

FIRST, SECOND = MEMBERS[:2]
GROUP, WEIGHTS = "blend", "weights"
"""Group of the tensor of weights, and its name."""


def open_first(path: Path) -> DlrmCheckpoint:
    """Opens the DLRM to blend.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        UserError: the checkpoint is of another model.
    """
    model = model_of(path)
    if model is not MODELS["dlrm"]:
        of_ratings = "; `recsys-recipes train blend` adds to a model of ratings"
        raise UserError(
            f"`blend_of` {path}: holds {model.title}, a model of {model.data}, but a blend of "
            f"clicks begins with a DLRM{of_ratings if model.data == 'ratings' else ''}",
            setting="blend_of",
        )
    return DlrmCheckpoint.open(path)


@dataclasses.dataclass(frozen=True, slots=True)
class FittedClicksBlend:
    """A blend that was just fitted; see `FittedClicks`.

    Attributes:
        settings: settings of the blend.
        network: the model.
        first: checkpoint of the DLRM.
        second: the logistic regression.
        origin: values that identify the training dataset.
        losses: log loss of the DLRM and of the blend on the validation rows.
    """

    settings: ClicksBlendSettings
    network: ClicksBlend
    first: DlrmCheckpoint
    second: FittedLogistic
    origin: Mapping[str, Any]
    losses: tuple[float, float]

    def __str__(self) -> str:
        first, second, intercept = self.network.weights.tolist()
        alone, blended = self.losses
        return (
            f"{first:.3f} times the logit of the DLRM, {second:.3f} times that of the logistic "
            f"regression ({self.second}), {intercept:+.3f}; validation log loss {blended:.6f}, of "
            f"the DLRM {alone:.6f}"
        )

    def groups(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Returns the weights of the blend; the models' own are in their folders."""
        return {GROUP: {WEIGHTS: self.network.weights}}

    def values(self) -> Mapping[str, Any]:
        """Returns an empty mapping."""
        return {}

    def add_files(self, folder: Path) -> None:
        """Writes the checkpoints of both models."""
        dlrm, origin = self.network.first, dict(self.origin)
        assert isinstance(dlrm, Dlrm)
        state = {MODEL: "dlrm", **self.first.values}
        write_checkpoint(folder / FIRST, weights_of(dlrm), state, self.first.checkpoint.config)
        second = self.second
        state = {MODEL: LOGISTIC.name, **origin, **second.values()}
        config = dataclasses.asdict(second.settings)
        write_checkpoint(folder / SECOND, second.groups(), state, config)


def fit_blend(
    rows: FitRows, settings: ClicksBlendSettings, print_line: PrintLine
) -> FittedClicksBlend:
    """Fits the logistic regression to the training rows, and the weights to the validation rows.

    Raises:
        DatasetError: a file is damaged, or the validation split is missing.
        UserError: the validation split is the tested one or has only one class, or rows are
            refused.
    """
    validation = rows.reader("validation")
    if not rows.count_validation():
        raise UserError(
            f"`dataset` {rows.dataset.root}: validation rows choose the weights of both models, "
            "so they must have both classes, and `eval_split` must be test",
            settings=("dataset", "eval_split"),
        )
    stored = open_first(Path(settings.blend_of))
    first = stored.load(has_lists=bool(rows.dataset.spec.lists))
    hashes = LogisticSettings(hash_indices=stored.hash_indices)
    second = fit(rows, hashes, print_line)
    scores = [
        score_rows(model, validation, rows.data.test_batch_size)
        for model in (first, second.network)
    ]
    labels = scores[0].labels.numpy()
    logits = np.stack([each.logits.double().numpy() for each in scores], 1)
    weights = minimize(sparse.csr_array(logits), labels, 0.0, np.array([1.0, 0.0, 0.0]))
    network = ClicksBlend(first, second.network, torch.tensor(weights, dtype=torch.float32))
    blended = float(log_losses(logits @ weights[:-1] + weights[-1], labels).mean())
    origin = rows.dataset.origin(rows.dataset.spec.table_sizes).values()
    losses = (scores[0].metrics.log_loss, blended)
    return FittedClicksBlend(settings, network, stored, second, origin, losses)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredClicksBlend(StoredClicks):
    """A checkpoint of a blend of clicks; see `StoredClicks`.

    Attributes:
        first: checkpoint of the DLRM.
        second: checkpoint of the logistic regression.
    """

    first: DlrmCheckpoint
    second: StoredLogistic

    @classmethod
    def open(cls, path: Path) -> "StoredClicksBlend":
        """Opens a checkpoint, or the folder of a run.

        Raises:
            CheckpointError: the checkpoint, or that of one of its models, is missing, damaged or
                of another model.
        """
        checkpoint = read_checkpoint(path)
        checkpoint.require_model(BLEND_CLICKS.name, BLEND_CLICKS.title)
        checkpoint.check_groups((GROUP,))
        first = DlrmCheckpoint.open(checkpoint.path / FIRST)
        second = StoredLogistic.open(checkpoint.path / SECOND)
        if first.hash_indices != second.hash_indices:
            raise CheckpointError(
                f"{checkpoint.path}: one of its models hashes ids and the other does not; use "
                "another checkpoint",
                path=checkpoint.path,
            )
        return cls(
            path=checkpoint.path,
            step=first.step,
            table_sizes=second.table_sizes,
            values=checkpoint.state,
            checkpoint=checkpoint,
            first=first,
            second=second,
        )

    @property
    def num_numerical(self) -> int:
        """M, numerical features of a row."""
        return self.second.num_numerical

    @property
    def hash_indices(self) -> bool:
        """Whether ids are taken modulo the rows of their table."""
        return self.second.hash_indices

    @property
    def weights(self) -> Tensor:
        """[3] float32, see `ClicksBlend`.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        expected = {WEIGHTS: torch.empty(3, device="meta")}
        return self.checkpoint.tensors_like(GROUP, expected)[WEIGHTS]

    def load(self, *, has_lists: bool = False) -> ClicksBlend:
        """Loads both models with their weights; see `StoredClicks`."""
        first, second = (each.load(has_lists=has_lists) for each in (self.first, self.second))
        return ClicksBlend(first, second, self.weights)
