# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of the training step and of inference."""

from collections.abc import Callable

from torch import Tensor

from dlrm.data.batch import Batch
from dlrm.train.step import DlrmTrainStep
from recsys.train.graphs import CallGraph


def _capture(call: Callable[[Batch[Tensor]], Tensor], batch: Batch[Tensor]) -> CallGraph:
    """Captures a function of a batch for batches of its size; it must have run before."""
    inputs = [tensor.clone() for tensor in _tensors(batch)]
    return CallGraph(lambda: call(Batch(*inputs)), inputs)


def _tensors(batch: Batch[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return batch.numerical, batch.ids, batch.label


class GraphedTrainStep:
    """A training step captured in a CUDA graph and replayed in one launch.

    A batch shorter than the longest so far, such as the last of an epoch, takes an eager step.

    Args:
        step: captured after three eager steps.
    """

    _WARMUP_STEPS = 3

    def __init__(self, step: DlrmTrainStep[Tensor]) -> None:
        self._step = step
        self._seen = 0
        self._rows = 0
        self._graph: CallGraph | None = None

    def __call__(self, batch: Batch[Tensor], lr: float) -> Tensor:
        """Trains on a batch; returns its scalar loss on the device."""
        self._step.begin(lr)
        self._rows = max(self._rows, len(batch))
        if len(batch) < self._rows:
            return self._step.update(batch)
        if self._graph is None:
            self._seen += 1
            if self._seen <= self._WARMUP_STEPS:
                return self._step.update(batch)
            self._graph = _capture(self._step.update, batch)
        return self._graph(_tensors(batch))


class GraphedInference:
    """Inference captured in one CUDA graph per batch size.

    A graph holds pointers to the weights: it sees updates in place, but must be captured again
    after a tensor is reallocated. It belongs to one precision.

    Args:
        predict: maps a batch to predictions, without gradients.
    """

    def __init__(self, predict: Callable[[Batch[Tensor]], Tensor]) -> None:
        self._predict = predict
        self._graphs: dict[int, CallGraph | None] = {}

    def __call__(self, batch: Batch[Tensor]) -> Tensor:
        """Predicts for a batch; the second batch of each size is captured."""
        rows = len(batch)
        if rows not in self._graphs:
            self._graphs[rows] = None
            return self._predict(batch)
        graph = self._graphs[rows]
        if graph is None:
            graph = self._graphs[rows] = _capture(self._predict, batch)
        return graph(_tensors(batch))
