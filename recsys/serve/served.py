# SPDX-License-Identifier: Apache-2.0
"""A deployed model, for the Python backend and the parity check."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from recsys.serve.client.requests import Arrays, check_arrays
from recsys.serve.deployment import Deployment


class ServedModel(abc.ABC):
    """A version of a model, ready to answer.

    Args:
        deployment: of the version.

    Attributes:
        deployment: as given.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    @classmethod
    @abc.abstractmethod
    def open(cls, folder: Path, device: torch.device) -> Self:
        """Loads a version folder.

        Raises:
            DeploymentError: it is missing, damaged or of another kind.
        """

    def check(self, request: Arrays) -> None:
        """Refuses a request that cannot be answered.

        Args:
            request: name -> [B, ...].

        Raises:
            BadRequestError: says which value is wrong, and what would be right.
        """
        check_arrays(self.deployment.signature, request)
        self.check_values(request)

    def answer(self, request: Arrays) -> Arrays:
        """Checks a request and answers it.

        Raises:
            BadRequestError: as `check`.
        """
        self.check(request)
        (reply,) = self.predict([request])
        return reply

    @abc.abstractmethod
    def check_values(self, request: Arrays) -> None:
        """Refuses bad values; names, types and shapes are checked already."""

    @abc.abstractmethod
    def warmup_request(self, rows: int) -> Arrays:
        """Returns a valid request to run before the first real one."""

    @abc.abstractmethod
    def predict(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Answers requests that were checked, all in one pass.

        Args:
            requests: name -> [B, ...] each.

        Returns:
            The outputs of each request by name.
        """
