# SPDX-License-Identifier: Apache-2.0
"""Export of a BERT4Rec checkpoint for deployment."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from bert4rec.config import AdapterConfig
from bert4rec.model.network import NO_ADAPTER, Bert4Rec
from bert4rec.model.next_item import NextItemNetwork
from bert4rec.model.scoring import TrainedBert4Rec
from bert4rec.model.weights import Bert4RecCheckpoint, merged, weights_of
from bert4rec.rules import max_history_length
from bert4rec.serve import triton_model
from bert4rec.serve.served import ServedBert4Rec
from recsys.errors import UserError
from recsys.ratings.config import RatingsExportOptions
from recsys.ratings.export import RatingsExport
from recsys.serve.manifest import OutOfRange, Quantize
from recsys.serve.served import ServedModel


class Bert4RecExport(RatingsExport):
    """A trained BERT4Rec.

    Args:
        path: a checkpoint, or the folder of a run.
        options: what requests and answers hold.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or of another model or dataset.
        UserError: see `RatingsExport`.
    """

    kind: str = ServedBert4Rec.kind
    served_class: ClassVar[type[ServedModel]] = ServedBert4Rec
    model_file: ClassVar[Path] = Path(triton_model.__file__)

    def __init__(self, path: Path, options: RatingsExportOptions) -> None:
        self._stored = Bert4RecCheckpoint.open(path)
        super().__init__(self._stored, options)

    @functools.cached_property
    def model(self) -> TrainedBert4Rec:
        """The model of the checkpoint, whose answers the deployed model must give."""
        return self._stored.open_model()

    @property
    def _served_adapter(self) -> AdapterConfig:
        """Adapters of the served network: constant ones are merged."""
        return NO_ADAPTER if self._stored.adapter.is_constant else self._stored.adapter

    @functools.cached_property
    def _served_model(self) -> Bert4Rec:
        stored, network = self._stored, self.model.network
        if stored.adapter == self._served_adapter:
            return network
        return merged(network, stored.config, stored.adapter)

    @property
    def history_length(self) -> int:
        """Maximum number of items of a history that the model reads."""
        length = max_history_length(self._stored.config.max_len, self._stored.causal)
        if length < 1:
            raise UserError(
                f"{self.path}: `max_len` 1 leaves no room for a history",
                setting="max_len",
                path=self.path,
            )
        return length

    def network_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild the network."""
        return {
            "config": dataclasses.asdict(self._stored.config),
            "adapter": dataclasses.asdict(self._served_adapter),
            "num_items": self.num_items,
            "causal": self._stored.causal,
        }

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns every parameter.

        Raises:
            UserError: `quantize` is not `none`.
        """
        if quantize != "none":
            raise UserError(
                f"`quantize` {quantize} is only for DLRM: BERT4Rec multiplies by its whole item "
                "table for every answer, so 8-bit rows would have to be converted back each time",
                setting="quantize",
            )
        return {name: value.contiguous() for name, value in weights_of(self._served_model).items()}

    def portable_network(
        self,
        weights: dict[str, Tensor],  # noqa: ARG002  (those of the model itself)
        out_of_range: OutOfRange,  # noqa: ARG002  (numbers that are not items are left out)
    ) -> nn.Module:
        """Returns the network for histories of a fixed length."""
        model = self._served_model.requires_grad_(False)
        return NextItemNetwork(model, self._top_k, self._stored.causal).eval()
