# SPDX-License-Identifier: Apache-2.0
"""Exports blends for deployment, and opens deployed ones in a server."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from recsys.ratings.blend import Blend
from recsys.ratings.config import RatingsExportOptions
from recsys.ratings.export import PlainRatingsExport, RatingsExport
from recsys.ratings.model import RatingsModel
from recsys.ratings.served import ServedRatings
from recsys.serve.manifest import Deployment, Quantize
from recsys.serve.served import ServedModel
from recsys_recipes.blending.kind import BLEND
from recsys_recipes.blending.stored import MEMBERS, StoredBlend, shares_of
from recsys_recipes.models import model_of, served_ratings


class ServedBlend(ServedRatings):
    """A loaded version of a blend."""

    kind = BLEND.name

    @classmethod
    def build(
        cls, deployment: Deployment, weights: dict[str, Tensor], device: torch.device
    ) -> Blend:
        """Builds the models around deployed weights, without a copy."""

        def member(name: str) -> RatingsModel:
            values = deployment.model[name]
            own = {
                key.removeprefix(f"{name}."): tensor
                for key, tensor in weights.items()
                if key.startswith(f"{name}.")
            }
            of_member = dataclasses.replace(deployment, kind=values["kind"], model=values["values"])
            return served_ratings(values["kind"]).build(of_member, own, device)

        shares = deployment.model["weights"]
        return Blend([member(name) for name in MEMBERS[: len(shares)]], shares)


class BlendExport(PlainRatingsExport):
    """A blend to deploy.

    Args:
        path: a checkpoint, or the folder of a run.
        options: what requests and answers hold.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or of another model or dataset.
        UserError: see `RatingsExport`.
    """

    kind: str = BLEND.name
    served_class: ClassVar[type[ServedModel]] = ServedBlend
    model_file: ClassVar[Path] = Path(__file__).with_name("triton_model.py")

    def __init__(self, path: Path, options: RatingsExportOptions) -> None:
        self._stored = StoredBlend.open(path)
        plain = RatingsExportOptions(top_k=options.top_k)
        self._members: Mapping[str, RatingsExport] = {
            name: model_of(member.path).export_ratings(member.path, plain)
            for name, member in zip(MEMBERS, self._stored.members, strict=False)
        }
        super().__init__(self._stored, options)

    @property
    def history_length(self) -> int:
        """Maximum number of items of a history that any of the models reads."""
        return max(member.history_length for member in self._members.values())

    def network_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild the models, and their weights."""
        values: dict[str, Any] = {
            name: {"kind": member.kind, "values": member.network_values()}
            for name, member in self._members.items()
        }
        shares = shares_of(self._stored.settings.weights)
        return values | {"num_items": self.num_items, "weights": shares}

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns the tensors of the models.

        Raises:
            UserError: `quantize` is not `none`.
        """
        return {
            f"{name}.{key}": tensor
            for name, member in self._members.items()
            for key, tensor in member.weights(quantize).items()
        }
