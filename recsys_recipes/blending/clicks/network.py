# SPDX-License-Identifier: Apache-2.0
"""The sum of two models of clicks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dlrm.model.clicks import ClickModel


class ClicksBlend(ClickModel[Any]):
    """Adds the logits of two models, each times a weight, and an intercept.

    Args:
        first: a model.
        second: another model, of the same features; either both hash ids or neither does.

    Attributes:
        weights: [3] float32: weight of the first model, weight of the second, and intercept.
    """

    def __init__(self, first: ClickModel[Any], second: ClickModel[Any], weights: Tensor) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.weights: Tensor
        self.register_buffer("weights", weights)
        self.eval().requires_grad_(False)

    @property
    def id_limits(self) -> Sequence[int] | None:
        """Ids of each categorical feature that both models have rows for."""
        return self.second.id_limits

    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables in earlier batches; see `ClickModel`."""
        self.first.raise_bad_ids()
        self.second.raise_bad_ids()

    def forward(self, numerical: Tensor, ids: Any) -> Tensor:
        """Predicts clicks; see `ClickModel`."""
        first, second, intercept = self.weights
        of_first: Tensor = self.first(numerical, ids).to(torch.float32)
        of_second: Tensor = self.second(numerical, ids)
        logits: Tensor = first * of_first + second * of_second + intercept
        return logits
