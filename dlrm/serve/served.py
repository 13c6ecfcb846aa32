# SPDX-License-Identifier: Apache-2.0
"""Serves deployed DLRMs and other click models."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from dlrm.config import ModelConfig
from dlrm.model.clicks import ClickModel
from dlrm.serve.network import build_model, network_of
from recsys.serve.client.requests import Arrays, check_ids
from recsys.serve.formats import Runner, open_artifact, read_weights
from recsys.serve.manifest import Deployment
from recsys.serve.served import ServedModel
from recsys.serve.signature import CATEGORICAL, NUMERICAL
from recsys.settings import section_from_dict

KIND = "dlrm"


class ServedClicks(ServedModel):
    """A deployed version of a click model, loaded and ready for requests.

    Attributes:
        kind: name of the model in `deployment.json`; set by the subclass.
    """

    kind: ClassVar[str]

    def __init__(self, deployment: Deployment, run: Runner, device: torch.device) -> None:
        super().__init__(deployment)
        self._run = run
        self._device = device
        sizes = np.array(deployment.model["table_sizes"], np.int64)
        self._ends = np.repeat(sizes, deployment.model.get("widths", 1))
        self._refuses_bad_ids = (
            deployment.out_of_range == "error" and not deployment.model["config"]["hash_indices"]
        )

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder."""
        deployment = Deployment.open(folder, cls.kind)
        names = {tensor.name for tensor in deployment.signature.network.inputs}

        def build() -> torch.nn.Module:
            return network_of(
                cls.build(deployment, read_weights(folder)),
                deployment.out_of_range,
                deployment.model.get("widths"),
                has_numbers=NUMERICAL in names,
                has_ids=CATEGORICAL in names,
            )

        return cls(deployment, open_artifact(folder, deployment, device, build), device)

    @classmethod
    @abc.abstractmethod
    def build(cls, deployment: Deployment, weights: dict[str, Tensor]) -> ClickModel[Any]:
        """Builds the model from deployed weights.

        Raises:
            DeploymentError: the weights belong to another model.
        """

    def check_values(self, request: Arrays) -> None:
        """Refuses ids outside their tables if the model was deployed with `out_of_range` error."""
        if self._refuses_bad_ids and CATEGORICAL in request:
            check_ids(CATEGORICAL, request[CATEGORICAL], self._ends)

    @torch.inference_mode()
    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Runs the network once for all requests."""
        signature = self.deployment.signature.network
        # The server passes read-only shared memory, for which torch warns: concatenate copies it.
        joined = (np.concatenate([r[tensor.name] for r in requests]) for tensor in signature.inputs)
        inputs = [torch.from_numpy(array).to(self._device) for array in joined]
        outputs = [output.cpu().numpy() for output in self._run(inputs)]
        (first, *_) = (tensor.name for tensor in signature.inputs)
        ends = np.cumsum([len(request[first]) for request in requests])[:-1]
        by_output = [np.split(output, ends) for output in outputs]
        names = [tensor.name for tensor in signature.outputs]
        return [dict(zip(names, reply, strict=True)) for reply in zip(*by_output, strict=True)]


class ServedDlrm(ServedClicks):
    """A deployed version of a DLRM."""

    kind = KIND

    @classmethod
    def build(cls, deployment: Deployment, weights: dict[str, Tensor]) -> ClickModel[Any]:
        """Builds the DLRM; see `ServedClicks.build`."""
        return build_model(
            section_from_dict(ModelConfig, deployment.model["config"]),
            tuple(deployment.model["table_sizes"]),
            weights,
            portable=False,
            has_lists="widths" in deployment.model,
        )
