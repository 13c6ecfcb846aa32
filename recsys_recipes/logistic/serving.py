# SPDX-License-Identifier: Apache-2.0
"""Exports logistic regressions for deployment, and opens deployed ones in a server."""

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from dlrm.serve.export import ClicksExport
from dlrm.serve.served import ServedClicks
from recsys.serve.checkpoint_export import PlainExport
from recsys.serve.manifest import Deployment, Quantize
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


class LogisticExport(PlainExport, ClicksExport):
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
