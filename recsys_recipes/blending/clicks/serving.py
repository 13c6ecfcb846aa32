# SPDX-License-Identifier: Apache-2.0
"""Exports blends of clicks for deployment, and opens deployed ones in a server."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from dlrm.model.clicks import ClickModel
from dlrm.serve.export import ClicksExport, DlrmExport
from dlrm.serve.served import ServedClicks, ServedDlrm
from recsys.serve.checkpoint_export import PlainExport
from recsys.serve.manifest import Deployment, Quantize
from recsys.serve.served import ServedModel
from recsys_recipes.blending.clicks.kind import NAME
from recsys_recipes.blending.clicks.network import ClicksBlend
from recsys_recipes.blending.clicks.stored import FIRST, SECOND, WEIGHTS, StoredClicksBlend
from recsys_recipes.logistic.serving import LogisticExport, ServedLogistic


class ServedClicksBlend(ServedClicks):
    """A deployed version of a blend of clicks."""

    kind = NAME

    @classmethod
    def build(cls, deployment: Deployment, weights: dict[str, Tensor]) -> ClicksBlend:
        """Builds both models around deployed weights, without a copy of their tables."""

        def member(served: type[ServedClicks], name: str) -> ClickModel[Any]:
            own = {
                key.removeprefix(f"{name}."): tensor
                for key, tensor in weights.items()
                if key.startswith(f"{name}.")
            }
            of_member = dataclasses.replace(deployment, model=deployment.model[name])
            return served.build(of_member, own)

        first, second = member(ServedDlrm, FIRST), member(ServedLogistic, SECOND)
        return ClicksBlend(first, second, weights[WEIGHTS])


class ClicksBlendExport(PlainExport, ClicksExport):
    """A blend of clicks to deploy; see `ClicksExport`."""

    kind: str = NAME
    served_class: ClassVar[type[ServedModel]] = ServedClicksBlend
    model_file: ClassVar[Path] = Path(__file__).with_name("triton_model.py")

    def __init__(self, path: Path) -> None:
        self._stored = StoredClicksBlend.open(path)
        super().__init__(path)
        self._members: dict[str, ClicksExport] = {
            FIRST: DlrmExport(self._stored.first.path),
            SECOND: LogisticExport(self._stored.second.path),
        }

    @property
    def stored(self) -> StoredClicksBlend:
        """The checkpoint."""
        return self._stored

    def network_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild both models."""
        members = {name: member.model_values() for name, member in self._members.items()}
        return {"config": {"hash_indices": self._stored.hash_indices}, **members}

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns the tensors of both models, and their weights.

        Raises:
            UserError: `quantize` is not `none`.
        """
        self.require_unquantized(quantize)
        return {WEIGHTS: self._stored.weights} | {
            f"{name}.{key}": tensor
            for name, member in self._members.items()
            for key, tensor in member.weights(quantize).items()
        }
