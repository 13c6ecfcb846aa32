# SPDX-License-Identifier: Apache-2.0
"""Exports checkpoints of a DLRM and of other click models for deployment."""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dlrm.data.opened import list_lengths
from dlrm.model.clicks import ClickModel, StoredClicks
from dlrm.model.network import Dlrm
from dlrm.model.weights import DlrmCheckpoint
from dlrm.nn.bags import Bags
from dlrm.serve import triton_model
from dlrm.serve.native import NativeDlrm, check_native
from dlrm.serve.network import build_model, network_of, weights_to_deploy
from dlrm.serve.served import KIND, ServedDlrm
from recsys.errors import UserError
from recsys.serve.checkpoint_export import CheckpointExport, recorded_training
from recsys.serve.client.requests import Arrays
from recsys.serve.manifest import OutOfRange, Quantize
from recsys.serve.served import ServedModel
from recsys.serve.signature import (
    CATEGORICAL,
    FACTORS,
    LOGIT,
    NUMERICAL,
    PROBABILITY,
    Signature,
    clicks_signature,
)
from recsys.train.origin import Origin

_ROWS_PER_REQUEST, _ELEMENTS = 256, 4


class ClicksExport(CheckpointExport, abc.ABC):
    """A click model, opened for deployment.

    Args:
        path: a checkpoint, or the folder of a run; for a DLRM, also a folder in NVIDIA's layout.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or belongs to another model.
        UserError: the model has no features.
    """

    def __init__(self, path: Path) -> None:
        stored = self.stored
        self.path, self.step = stored.path, stored.step
        self._lengths = list_lengths(self.origin.semantics)
        self.widths = (*[1] * (len(stored.table_sizes) - len(self._lengths)), *self._lengths)
        if not stored.table_sizes and not stored.num_numerical:
            raise UserError(
                f"{path}: a model without features cannot be deployed, because a request cannot "
                "have empty tensors",
                path=path,
            )

    @property
    @abc.abstractmethod
    def stored(self) -> StoredClicks:
        """The checkpoint."""

    @functools.cached_property
    def model(self) -> ClickModel[Any]:
        """The trained model in evaluation mode, loaded on first use."""
        return self.stored.load(has_lists=self.num_list_slots > 0)

    @property
    def num_list_slots(self) -> int:
        """Greatest number of ids of all lists in a row."""
        return sum(self._lengths)

    @property
    def origin(self) -> Origin:
        """The training dataset."""
        return self.stored.origin

    @property
    def training(self) -> dict[str, Any]:
        """Dataset and best evaluation; empty for a checkpoint in NVIDIA's layout."""
        return recorded_training(self.stored.checkpoint)

    def signature(self, *, fixed_shapes: bool) -> Signature:  # noqa: ARG002  (all are fixed)
        """Returns the network's inputs and outputs."""
        return clicks_signature(self.stored.num_numerical, sum(self.widths), self.num_list_slots)

    @abc.abstractmethod
    def network_values(self) -> dict[str, Any]:
        """Returns the settings that rebuild the network; its `config` contains `hash_indices`."""

    def model_values(self) -> dict[str, Any]:
        """Returns `network_values` and the sizes of the tables, for `deployment.json`."""
        return {
            **self.network_values(),
            "table_sizes": list(self.stored.table_sizes),
            **({"widths": list(self.widths)} if self.num_list_slots else {}),
        }

    def example_requests(
        self,
        count: int,
        *,
        fixed_shapes: bool,  # noqa: ARG002  (all are fixed)
    ) -> list[Arrays]:
        """Draws samples with random features and ids; at most 256 per request."""
        generator = np.random.default_rng(0)
        sizes = np.repeat(self.stored.table_sizes, self.widths)
        features = self.stored.num_numerical
        requests: list[Arrays] = []
        for start in range(0, count, _ROWS_PER_REQUEST):
            rows = min(_ROWS_PER_REQUEST, count - start)
            numbers = generator.normal(size=(rows, features)).astype(np.float32)
            ids = generator.integers(0, sizes, (rows, len(sizes)), np.int64)
            request: dict[str, Any] = {NUMERICAL: numbers} if features else {}
            if len(sizes):
                request[CATEGORICAL] = ids
            if self.num_list_slots:  # some elements of each list
                widths = np.repeat(self._lengths, self._lengths)
                factors = generator.uniform(0, 0.5, (rows, self.num_list_slots))
                factors *= generator.random(factors.shape) < _ELEMENTS / widths
                request[FACTORS] = factors.astype(np.float32)
            requests.append(request)
        return requests

    @torch.inference_mode()
    def largest_difference(self, requests: Sequence[Arrays], responses: Sequence[Arrays]) -> float:
        """Returns the largest difference of probabilities and logits from the model's.

        Differences of logits above 1 in magnitude are relative.
        """

        def joined(source: Sequence[Arrays], name: str) -> Tensor:
            return torch.from_numpy(np.concatenate([arrays[name] for arrays in source]))

        rows = sum(len(next(iter(request.values()))) for request in requests)
        categorical, numerical = torch.empty(rows, 0, dtype=torch.int64), torch.empty(rows, 0)
        if self.widths:
            categorical = joined(requests, CATEGORICAL)
        if self.stored.num_numerical:
            numerical = joined(requests, NUMERICAL)
        probability, logit = joined(responses, PROBABILITY), joined(responses, LOGIT)
        ids: Any = categorical
        if self.num_list_slots:
            ids = Bags.from_slots(categorical, joined(requests, FACTORS), self.widths)
        true = self.model(numerical, ids).to(torch.float32).unsqueeze(1)
        scale = true.abs().clamp(min=1)
        logit_difference = ((logit - true).abs() / scale).max()
        probability_difference = (probability - torch.sigmoid(true)).abs().max()
        return float(torch.maximum(logit_difference, probability_difference))


class DlrmExport(ClicksExport):
    """A trained DLRM, opened for deployment; see `ClicksExport`."""

    kind: str = KIND
    served_class: ClassVar[type[ServedModel]] = ServedDlrm
    model_file: ClassVar[Path] = Path(triton_model.__file__)

    def __init__(self, path: Path) -> None:
        self._stored = DlrmCheckpoint.open(path)
        super().__init__(path)
        # The weights of deployed layers include their normalisation.
        self.config = dataclasses.replace(self._stored.config, batch_norm=False)

    @property
    def stored(self) -> DlrmCheckpoint:
        """The checkpoint."""
        return self._stored

    @functools.cached_property
    def model(self) -> Dlrm:
        """The trained model in evaluation mode, loaded on first use."""
        return self._stored.load(has_lists=self.num_list_slots > 0)

    def network_values(self) -> dict[str, Any]:
        """Returns the settings of the model."""
        return {"config": dataclasses.asdict(self.config)}

    def weights(self, quantize: Quantize) -> dict[str, Tensor]:
        """Returns the joint table and the MLPs' parameters.

        Raises:
            UserError: the model has lists and should be quantized.
        """
        if quantize != "none" and self.num_list_slots:
            raise UserError(
                f"`quantize` {quantize} does not support models with lists yet; leave it out to "
                "serve float32",
                setting="quantize",
            )
        return weights_to_deploy(self.model, quantize)

    def native_class(self) -> type[ServedModel]:
        """Returns the class that opens a version like the native backend."""
        check_native(self.config, len(self.stored.table_sizes))
        return NativeDlrm

    def portable_network(self, weights: dict[str, Tensor], out_of_range: OutOfRange) -> nn.Module:
        """Returns the network in plain PyTorch.

        Raises:
            UserError: the model has lists.
        """
        if self.num_list_slots:
            raise UserError(
                "models with lists support only `format` eager so far", setting="format"
            )
        sizes = self.stored.table_sizes
        return network_of(
            build_model(self.config, sizes, weights, portable=True),
            out_of_range,
            None,
            has_numbers=self.config.num_numerical_features > 0,
            has_ids=bool(sizes),
        )
