# SPDX-License-Identifier: Apache-2.0
"""The interface that a model implements so that it can be deployed."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from recsys.errors import UserError
from recsys.serve.client.requests import Arrays
from recsys.serve.manifest import OutOfRange, Quantize
from recsys.serve.served import ServedModel
from recsys.serve.signature import Signature
from recsys.train.checkpoint import Checkpoint
from recsys.train.origin import Origin

_RECORDED = ("dataset", "dataset_path", "dataset_type", "eval_split", "best_metric", "best_epoch")


def recorded_training(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the path of the dataset and the best evaluation that a checkpoint records."""
    values = checkpoint.config | checkpoint.state
    return {name: values[name] for name in _RECORDED if values.get(name) is not None}


class CheckpointExport(abc.ABC):
    """A trained model, opened for deployment.

    Attributes:
        kind: name of the model in `deployment.json`.
        model_file: file that is copied as `model.py`.
    """

    kind: str
    served_class: ClassVar[type[ServedModel]]
    model_file: ClassVar[Path]
    path: Path
    step: int | None

    @property
    @abc.abstractmethod
    def origin(self) -> Origin:
        """The training dataset."""

    @property
    @abc.abstractmethod
    def training(self) -> dict[str, Any]:
        """Path of the training dataset and best evaluation, if recorded."""

    @abc.abstractmethod
    def signature(self, *, fixed_shapes: bool) -> Signature:
        """Returns the network's signature; with `fixed_shapes`, all shapes are fixed."""

    @abc.abstractmethod
    def model_values(self) -> dict[str, Any]:
        """Returns the values from which `served_class` rebuilds the network."""

    @abc.abstractmethod
    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns the weights of the network by name.

        Raises:
            UserError: the model cannot be quantised in this way.
        """

    def write_files(self, folder: Path) -> None:  # noqa: B027  (most models have none)
        """Writes any further files that `served_class` reads to a version folder."""

    def native_class(self) -> type[ServedModel]:
        """Returns the class that opens a version in the same way as the native backend.

        Raises:
            UserError: the native backend is not built, or does not run this model.
        """
        raise UserError(
            f"`backend` native only runs DLRM; {self.kind} needs `backend` python",
            setting="backend",
        )

    @abc.abstractmethod
    def portable_network(self, weights: dict[str, Tensor], out_of_range: OutOfRange) -> nn.Module:
        """Returns the network in plain PyTorch, for exporters."""

    @abc.abstractmethod
    def example_requests(self, count: int, *, fixed_shapes: bool) -> list[Arrays]:
        """Draws valid requests of at least `count` rows together, the same on every call."""

    @abc.abstractmethod
    def largest_difference(self, requests: Sequence[Arrays], responses: Sequence[Arrays]) -> float:
        """Returns the largest difference between a response and the trained model's output.

        The difference is relative to the true value if that is above 1.
        """


class PlainExport(CheckpointExport):
    """A model that cannot be exported or stored in 8 bits.

    The Python backend serves it as trained.
    """

    def require_unquantized(self, quantize: Quantize) -> None:
        """Refuses to store the weights in 8 bits.

        Raises:
            UserError: `quantize` is not `none`.
        """
        if quantize != "none":
            raise UserError(
                f"`quantize` {quantize} is only for the tables of a DLRM; {self.kind} is served as "
                "trained: leave it out",
                setting="quantize",
            )

    def cannot_export(self) -> UserError:
        """Returns the error for a format that needs an exporter."""
        return UserError(
            f"`format`: {self.kind} cannot be exported; use `backend` python `format` eager",
            settings=("format", "backend"),
        )

    def portable_network(
        self,
        weights: dict[str, Tensor],  # noqa: ARG002  (refused)
        out_of_range: OutOfRange,  # noqa: ARG002
    ) -> nn.Module:
        """Refuses the export.

        Raises:
            UserError: always.
        """
        raise self.cannot_export()
