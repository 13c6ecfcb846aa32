# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of the training step and of inference."""

from collections.abc import Callable

import torch
from torch import Tensor

from dlrm.data.batch import Batch
from dlrm.train.step import DlrmTrainStep


class BatchGraph:
    """A function of a batch, captured in a CUDA graph for batches of one size.

    Args:
        call: runs on the device, never waits for it, and returns a tensor.
        batch: a batch of this size; `call` must have run before.
    """

    def __init__(self, call: Callable[[Batch[Tensor]], Tensor], batch: Batch[Tensor]) -> None:
        self._batch = Batch(batch.numerical.clone(), batch.ids.clone(), batch.label.clone())
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # In the default mode, a reader thread that pins memory meanwhile would break the capture.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._result = call(self._batch)

    def __call__(self, batch: Batch[Tensor]) -> Tensor:
        """Returns the result for a batch, in a new tensor."""
        self._batch.numerical.copy_(batch.numerical)
        self._batch.ids.copy_(batch.ids)
        self._batch.label.copy_(batch.label)
        self._graph.replay()
        return self._result.clone()


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
        self._graph: BatchGraph | None = None

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
            self._graph = BatchGraph(self._step.update, batch)
        return self._graph(batch)


class GraphedInference:
    """Inference captured in one CUDA graph per batch size.

    A graph holds pointers to the weights: it sees updates in place, but must be captured again
    after a tensor is reallocated. It belongs to one precision.

    Args:
        predict: maps a batch to predictions, without gradients.
    """

    def __init__(self, predict: Callable[[Batch[Tensor]], Tensor]) -> None:
        self._predict = predict
        self._graphs: dict[int, BatchGraph | None] = {}

    def __call__(self, batch: Batch[Tensor]) -> Tensor:
        """Predicts for a batch; the second batch of each size is captured."""
        rows = len(batch)
        if rows not in self._graphs:
            self._graphs[rows] = None
            return self._predict(batch)
        graph = self._graphs[rows]
        if graph is None:
            graph = self._graphs[rows] = BatchGraph(self._predict, batch)
        return graph(batch)
