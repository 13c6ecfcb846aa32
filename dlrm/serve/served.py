# SPDX-License-Identifier: Apache-2.0
"""A deployed DLRM that answers requests. Letters: B rows, F categorical features."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from dlrm.config import ModelConfig
from dlrm.serve.network import build_network
from recsys.serve.client.requests import Arrays, check_ids
from recsys.serve.deployment import Deployment, DeploymentError
from recsys.serve.formats import Runner, open_artifact, read_weights
from recsys.serve.served import ServedModel
from recsys.serve.signature import CATEGORICAL
from recsys.settings import section_from_dict

KIND = "dlrm"


class ServedDlrm(ServedModel):
    """A DLRM, ready to answer.

    Args:
        deployment: of the version.
        run: the network.
        device: of its inputs.
    """

    def __init__(self, deployment: Deployment, run: Runner, device: torch.device) -> None:
        super().__init__(deployment)
        self._run = run
        self._device = device
        self._ends = np.array(deployment.model["table_sizes"], np.int64)
        self._refuses = (
            deployment.out_of_range == "error" and not model_config(deployment).hash_indices
        )

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder.

        Raises:
            DeploymentError: it is missing, damaged or of another kind.
        """
        deployment = Deployment.load(folder)
        if deployment.kind != KIND:
            raise DeploymentError(f"{folder}: holds a {deployment.kind}, expected {KIND}")

        def build() -> torch.nn.Module:
            return build_network(
                model_config(deployment),
                tuple(deployment.model["table_sizes"]),
                read_weights(folder),
                deployment.out_of_range,
                portable=False,
            )

        return cls(deployment, open_artifact(folder, deployment, device, build), device)

    def check_values(self, request: Arrays) -> None:
        """Refuses ids outside their table, unless they are to count as unknown."""
        if self._refuses:
            check_ids(CATEGORICAL, request[CATEGORICAL], self._ends)

    def warmup_request(self, rows: int) -> Arrays:
        """Returns rows of zeros."""
        return {
            tensor.name: np.zeros((rows, *tensor.shape), tensor.numpy_dtype)
            for tensor in self.deployment.signature.inputs
        }

    @torch.inference_mode()
    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Scores the rows of all requests together."""
        signature = self.deployment.signature
        inputs = [
            torch.from_numpy(_joined([request[tensor.name] for request in requests])).to(
                self._device
            )
            for tensor in signature.inputs
        ]
        outputs = [found.cpu().numpy() for found in self._run(inputs)]
        ends = np.cumsum([len(request[CATEGORICAL]) for request in requests])[:-1]
        parts = [np.split(output, ends) for output in outputs]
        names = [tensor.name for tensor in signature.outputs]
        return [dict(zip(names, answer, strict=True)) for answer in zip(*parts, strict=True)]


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    # What the server hands over is read-only shared memory, which torch warns of: copied once.
    return np.concatenate(arrays)


def model_config(deployment: Deployment) -> ModelConfig:
    """Returns the model settings of a deployed DLRM."""
    return section_from_dict(ModelConfig, deployment.model["config"])
