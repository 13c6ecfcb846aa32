# SPDX-License-Identifier: Apache-2.0
"""Moving average of the weights of a run."""

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

_WARMUP = 10
"""Steps in which the average follows the weights closely."""


class WeightAverage:
    """Exponential moving average of parameters.

    After step t the average moves to the weights by 1 - min(decay, (1 + t) / (10 + t)), so the
    first weights are soon forgotten. Source: Polyak and Juditsky 1992; the slow start is that of
    TensorFlow's ExponentialMovingAverage.

    Args:
        parameters: name -> parameter; the average of each starts at its present values.
        decay: fraction of the average that a step keeps, in (0, 1).
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self._parameters = dict(parameters)
        self._decay = decay
        self._average = {name: p.detach().clone() for name, p in parameters.items()}
        self._steps = np.zeros((), np.int64)

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the weights after a step."""
        self._steps += 1
        steps = int(self._steps)
        decay = min(self._decay, (1 + steps) / (_WARMUP + steps))
        averages = list(self._average.values())
        weights = [p.detach() for p in self._parameters.values()]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextlib.contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Exchanges weights and average until the end of the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data, self._average[name] = self._average[name], parameter.data

    @property
    def weights(self) -> dict[str, Tensor]:
        """Average of each parameter by name."""
        return dict(self._average)

    def state(self) -> dict[str, Tensor]:
        """Returns the count of averaged steps; copying into the tensor restores it."""
        return {"steps": torch.from_numpy(self._steps)}
