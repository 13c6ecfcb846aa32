# SPDX-License-Identifier: Apache-2.0
"""The interface that a model implements to be deployed."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from recsys.serve.client.requests import Arrays
from recsys.serve.deployment import OutOfRange, Quantize
from recsys.serve.served import ServedModel
from recsys.serve.signature import Signature


class CheckpointExport(abc.ABC):
    """A trained model, opened to be deployed.

    Attributes:
        kind: of the model, as `deployment.json` names it.
        served_class: answers requests with a deployed version.
        model_file: the file that becomes `model.py`.
        path: of the checkpoint.
        step: steps it was trained for.
    """

    kind: ClassVar[str]
    served_class: ClassVar[type[ServedModel]]
    model_file: ClassVar[Path]
    path: Path
    step: int | None

    @abc.abstractmethod
    def signature(self, *, fixed_shapes: bool) -> Signature:
        """Returns what the network takes and gives.

        Args:
            fixed_shapes: of a network that an exporter has to see through.
        """

    @abc.abstractmethod
    def model_values(self) -> dict[str, Any]:
        """Returns what `served_class` needs to put the network together again."""

    @abc.abstractmethod
    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns what the network reads.

        Raises:
            UserError: the model cannot be quantised so.
        """

    def write_files(self, folder: Path) -> None:  # noqa: B027  (most models have none)
        """Writes what `served_class` needs besides weights and `deployment.json`."""

    @abc.abstractmethod
    def portable_network(self, weights: dict[str, Tensor], out_of_range: OutOfRange) -> nn.Module:
        """Returns the network in plain PyTorch, for exporters."""

    @abc.abstractmethod
    def example_requests(self, count: int, *, fixed_shapes: bool) -> list[Arrays]:
        """Draws valid requests of several rows each, the same on every call.

        Args:
            count: rows of all of them together, at least.
            fixed_shapes: as in `signature`.
        """

    @abc.abstractmethod
    def largest_difference(self, requests: Sequence[Arrays], answers: Sequence[Arrays]) -> float:
        """Compares answers with those of the model as it was trained.

        Returns:
            The largest difference of an output, relative to the true value where that is above 1.
        """
