# SPDX-License-Identifier: Apache-2.0
"""The interface of a deployed model."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from recsys.serve.client.requests import Arrays, check_arrays
from recsys.serve.manifest import Deployment


class ServedModel(abc.ABC):
    """A loaded version of a model."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    @classmethod
    @abc.abstractmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder.

        Raises:
            DeploymentError: the version is missing, damaged or of another kind.
        """

    def prepare(self, request: Arrays) -> Arrays:
        """Checks a request of arrays [B, ...]; returns the inputs of the network.

        Raises:
            BadRequestError: names the wrong value and what was expected.
        """
        self.check(request)
        return request

    def check(self, request: Arrays) -> None:
        """Refuses bad inputs of the network.

        Raises:
            BadRequestError: see `prepare`.
        """
        check_arrays(self.deployment.signature.network, request)
        self.check_values(request)

    def respond(self, request: Arrays) -> Arrays:
        """Checks a request and returns its outputs by name.

        Raises:
            BadRequestError: see `prepare`.
        """
        (reply,) = self.predict([self.prepare(request)])
        return reply

    @abc.abstractmethod
    def check_values(self, request: Arrays) -> None:
        """Refuses bad values in tensors of the right names, types and shapes."""

    def warmup_request(self, rows: int) -> Arrays:
        """Returns a valid request of zeros to warm the model up."""
        return {
            tensor.name: np.zeros((rows, *tensor.shape), tensor.numpy_dtype)
            for tensor in self.deployment.signature.network.inputs
        }

    @abc.abstractmethod
    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Runs the network once; returns the outputs of each prepared request."""
