# SPDX-License-Identifier: Apache-2.0
"""Serves a deployed DLRM."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from dlrm.config import ModelConfig
from dlrm.serve.network import build_network
from recsys.serve.client.requests import Arrays, check_ids
from recsys.serve.formats import Runner, open_artifact, read_weights
from recsys.serve.manifest import Deployment
from recsys.serve.served import ServedModel
from recsys.serve.signature import CATEGORICAL
from recsys.settings import section_from_dict

KIND = "dlrm"


class ServedDlrm(ServedModel):
    """A deployed version of a DLRM, loaded and ready for requests."""

    def __init__(self, deployment: Deployment, run: Runner, device: torch.device) -> None:
        super().__init__(deployment)
        self._run = run
        self._device = device
        sizes = np.array(deployment.model["table_sizes"], np.int64)
        self._ends = np.repeat(sizes, deployment.model.get("widths", 1))
        self._refuses_bad_ids = (
            deployment.out_of_range == "error" and not model_config(deployment).hash_indices
        )

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder."""
        deployment = Deployment.open(folder, KIND)

        def build() -> torch.nn.Module:
            return build_network(
                model_config(deployment),
                tuple(deployment.model["table_sizes"]),
                read_weights(folder),
                deployment.out_of_range,
                portable=False,
                widths=deployment.model.get("widths"),
            )

        return cls(deployment, open_artifact(folder, deployment, device, build), device)

    def check_values(self, request: Arrays) -> None:
        """Refuses ids outside their tables, where deployed with `out_of_range` error."""
        if self._refuses_bad_ids and CATEGORICAL in request:
            check_ids(CATEGORICAL, request[CATEGORICAL], self._ends)

    @torch.inference_mode()
    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Runs the network once for all requests."""
        signature = self.deployment.signature.network
        # The server passes read-only shared memory, of which torch warns: concatenate copies it.
        joined = (np.concatenate([r[tensor.name] for r in requests]) for tensor in signature.inputs)
        inputs = [torch.from_numpy(array).to(self._device) for array in joined]
        outputs = [output.cpu().numpy() for output in self._run(inputs)]
        (first, *_) = (tensor.name for tensor in signature.inputs)
        ends = np.cumsum([len(request[first]) for request in requests])[:-1]
        by_output = [np.split(output, ends) for output in outputs]
        names = [tensor.name for tensor in signature.outputs]
        return [dict(zip(names, reply, strict=True)) for reply in zip(*by_output, strict=True)]


def model_config(deployment: Deployment) -> ModelConfig:
    """Returns the model settings of a deployed DLRM."""
    return section_from_dict(ModelConfig, deployment.model["config"])
