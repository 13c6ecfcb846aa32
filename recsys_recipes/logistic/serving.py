# SPDX-License-Identifier: Apache-2.0
"""Deployment of logistic regressions: exported, and opened by a server."""

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from dlrm.serve.export import ClicksExport
from dlrm.serve.served import ServedClicks
from recsys.errors import UserError
from recsys.serve.manifest import Deployment, OutOfRange, Quantize
from recsys.serve.served import ServedModel
from recsys_recipes.logistic.kind import NAME
from recsys_recipes.logistic.network import LogisticNetwork
from recsys_recipes.logistic.stored import StoredLogistic


class ServedLogistic(ServedClicks):
    """A deployed version of a logistic regression."""

    kind = NAME

    @classmethod
    def build(cls, deployment: Deployment, weights: dict[str, Tensor]) -> LogisticNetwork:
        """Builds the network; see `ServedClicks`."""
        return LogisticNetwork.of_weights(
            weights,
            deployment.model["table_sizes"],
            hash_indices=deployment.model["config"]["hash_indices"],
            has_lists="widths" in deployment.model,
        )


class PlainClicksExport(ClicksExport):
    """A model of clicks that the Python backend alone serves, as it is."""

    def require_unquantized(self, quantize: Quantize) -> None:
        """Refuses to store the weights in 8 bits.

        Raises:
            UserError: `quantize` is not `none`.
        """
        if quantize != "none":
            raise UserError(
                f"`quantize` {quantize} is for the tables of a DLRM; {self.kind} is served in "
                "float32",
                setting="quantize",
            )

    def portable_network(
        self,
        weights: dict[str, Tensor],  # noqa: ARG002  (refused)
        out_of_range: OutOfRange,  # noqa: ARG002
    ) -> nn.Module:
        """Refuses: no exporter writes this model.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"`format`: {self.kind} is not exported; use `backend` python `format` eager",
            settings=("format", "backend"),
        )


class LogisticExport(PlainClicksExport):
    """A logistic regression to deploy; see `ClicksExport`."""

    kind: str = NAME
    served_class: ClassVar[type[ServedModel]] = ServedLogistic
    model_file: ClassVar[Path] = Path(__file__).with_name("triton_model.py")

    def __init__(self, path: Path) -> None:
        self._stored = StoredLogistic.open(path)
        super().__init__(path)

    @property
    def stored(self) -> StoredLogistic:
        """The checkpoint."""
        return self._stored

    def network_values(self) -> dict[str, Any]:
        """Returns the settings of the model."""
        return {"config": {"hash_indices": self._stored.hash_indices}}

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns the tensors of the network.

        Raises:
            UserError: `quantize` is not `none`.
        """
        self.require_unquantized(quantize)
        model = self.model
        assert isinstance(model, LogisticNetwork)
        return model.weights()
