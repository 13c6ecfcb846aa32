# SPDX-License-Identifier: Apache-2.0
"""Functions captured in CUDA graphs: all their kernels are launched at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class CallGraph:
    """A function of tensors, captured in a CUDA graph for tensors of one size.

    Args:
        call: runs on the device, never waits for it, and returns a tensor. It reads `inputs`, and
            must have run before.
        inputs: the tensors that change between calls.
        generators: random generators that `call` uses besides the global one; each replay draws
            from their present state.
        pool: memory that the graph shares with others, which are never replayed at the same time;
            None gives it memory of its own.
    """

    def __init__(
        self,
        call: Callable[[], Tensor],
        inputs: Sequence[Tensor],
        *,
        generators: Sequence[torch.Generator] = (),
        pool: Any = None,
    ) -> None:
        self._inputs = inputs
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self._graph.register_generator_state(generator)
        # In the default mode, a reader thread that pins memory meanwhile would break the capture.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._result = call()

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """Returns the result for other values of the inputs, in a new tensor."""
        for into, value in zip(self._inputs, values, strict=True):
            into.copy_(value)
        self._graph.replay()
        return self._result.clone()
