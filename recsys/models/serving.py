# SPDX-License-Identifier: Apache-2.0
"""Deployment of fitted models: exports them, and opens them in a server."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from recsys.models.registry import FITTED
from recsys.ratings.config import RatingsExportOptions
from recsys.ratings.export import PlainRatingsExport
from recsys.ratings.fitted.model import FittedModel
from recsys.ratings.fitted.stored import StoredFitted
from recsys.ratings.served import ServedRatings
from recsys.serve.manifest import Deployment, DeploymentError, Quantize
from recsys.serve.served import ServedModel
from recsys.settings import section_from_dict

_SHOWN_LENGTH = 50
"""Items of a test history, if the model reads any number of them."""


class ServedFitted(ServedRatings):
    """A loaded version of a fitted model; its `deployment.json` names the kind."""

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder."""
        deployment = Deployment.load(folder)
        return cls.of(Deployment.open(folder, of_kind(deployment.kind).name), folder, device)

    @classmethod
    def build(
        cls,
        deployment: Deployment,
        weights: dict[str, Tensor],
        device: torch.device,  # noqa: ARG003  (fitted models score on the host)
    ) -> FittedModel[Any]:
        """Builds the model around deployed tensors, without copying them."""
        kind, values = of_kind(deployment.kind), deployment.model
        settings: Any = section_from_dict(kind.settings_class, values["settings"])
        return kind.of_tensors(weights, settings, values["num_items"])


def of_kind(name: str) -> type[FittedModel[Any]]:
    """Returns the class of a fitted model.

    Raises:
        DeploymentError: there is no fitted model of that name.
    """
    if name not in FITTED:
        raise DeploymentError(f"{name} is not one of the models {', '.join(FITTED)}")
    return FITTED[name].load()


class FittedExport(PlainRatingsExport):
    """Exports a fitted model for deployment.

    Args:
        kind: class of the model.
        path: a checkpoint, or the folder of a run.
        options: contents of requests and answers.

    Raises:
        CheckpointError: it is missing, damaged, or of another model or dataset.
        UserError: see `RatingsExport`.
    """

    served_class: ClassVar[type[ServedModel]] = ServedFitted
    model_file: ClassVar[Path] = Path(__file__).with_name("triton_model.py")

    def __init__(
        self, kind: type[FittedModel[Any]], path: Path, options: RatingsExportOptions
    ) -> None:
        self.kind = kind.name
        self._stored = StoredFitted.open(path, kind)
        super().__init__(self._stored, options)

    @property
    def history_length(self) -> int:
        """Largest number of items of a history that count; if unlimited, a length to test with."""
        return self._stored.kind.history_length(self._stored.settings) or _SHOWN_LENGTH

    def network_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild the model."""
        settings = dataclasses.asdict(self._stored.settings)
        return {"settings": settings, "num_items": self.num_items}

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns the tensors of the model.

        Raises:
            UserError: `quantize` is not `none`.
        """
        self.require_unquantized(quantize)
        model = self.model
        assert isinstance(model, FittedModel)
        return model.tensors()
