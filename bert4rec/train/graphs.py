# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of the training step, one for each size of a batch."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from bert4rec.config import Bert4RecConfig
from bert4rec.data.batches import TrainBatch
from cuda_ext import library
from recsys.errors import UserError
from recsys.train.graphs import CallGraph

Part = Callable[[TrainBatch, bool, bool], Tensor]
"""Trains on a batch that is, or is not, the first and the last of its step; returns its loss."""


class GraphedParts:
    """The parts of a training step, captured in CUDA graphs and replayed in one launch each.

    Loaders round the sizes of batches, so few occur. A size that has occurred `_OFTEN` times is
    captured; the others take eager steps, as do those beyond `_MOST_GRAPHS`.

    Args:
        part: the eager part.
        generators: random generators that it uses besides the global one.
    """

    _OFTEN = 3
    _MOST_GRAPHS = 24

    def __init__(self, part: Part, generators: Sequence[torch.Generator]) -> None:
        self._part = part
        self._generators = generators
        self._seen: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, CallGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: TrainBatch, is_first: bool, is_last: bool) -> Tensor:
        """Trains on a batch; returns its loss, a scalar on the device."""
        size = (batch.sizes, is_first, is_last)
        graph = self._graphs.get(size)
        if graph is None:
            seen = self._seen[size] = self._seen.get(size, 0) + 1
            if seen <= self._OFTEN or len(self._graphs) == self._MOST_GRAPHS:
                return self._part(batch, is_first, is_last)
            graph = self._graphs[size] = self._capture(batch, is_first, is_last)
        return graph(batch.tensors())

    def _capture(self, batch: TrainBatch, is_first: bool, is_last: bool) -> CallGraph:
        own = batch.map(torch.clone)
        return CallGraph(
            lambda: self._part(own, is_first, is_last),
            own.tensors(),
            generators=self._generators,
            pool=self._pool,
        )


def check_graphable(config: Bert4RecConfig, device: torch.device, world_size: int) -> None:
    """Refuses `cuda_graphs` for a step that cannot be captured.

    Raises:
        UserError: names the setting that prevents it.
    """
    others = {
        "activation_checkpointing": (
            config.run.activation_checkpointing,
            "`activation_checkpointing` saves the state of the random generators on the host",
        ),
        "accumulation_steps": (
            config.updates_rows and config.optimizer.accumulation_steps > 1,
            "with several batches a step, the rows of all of them are updated at once",
        ),
    }
    for name, (is_set, why) in others.items():
        if is_set:
            raise UserError(
                f"`cuda_graphs` cannot capture this step: {why}; drop one of the two settings",
                settings=("cuda_graphs", name),
            )
    why = ""
    if device.type != "cuda":
        why = f"needs a CUDA device; this run uses {device.type}"
    elif world_size > 1 or config.run.parallelism == "dmp":
        why = "captures the step of a single device; drop it to train on several"
    elif config.updates_rows and library.path_of("cuda") != "compiled":
        why = (
            "needs the extension's CUDA kernels, since the updates of rows in plain PyTorch count "
            f"the distinct items of a batch. They are missing: {library.why_not_compiled('cuda')}"
        )
    if why:
        raise UserError(f"`cuda_graphs` {why}", setting="cuda_graphs")
