# SPDX-License-Identifier: Apache-2.0
"""Training step without MLPs: lookup, interaction, backward, table update; checked in float64."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmark.case import Group
from benchmark.cases.interaction_kernels import our_interaction, plain_interaction
from benchmark.peers.tables import (
    EMBEDDING_BAG,
    FBGEMM,
    LEARNING_RATE,
    IdBatch,
    OurTables,
    Tables,
    TouchedRows,
    build_tables,
)
from benchmark.peers.torchrec import interaction_arch
from benchmark.side_by_side import (
    NUM_BATCHES,
    OURS,
    KernelSettings,
    check_error,
    id_batches,
    interaction_flops,
    kernel_group,
    torchrec_columns,
)
from benchmark.stopwatch import in_turns
from cuda_ext import error_bounds, reference
from cuda_ext.error_bounds import Bounded

UNFUSED = "ours, unfused"
PEER = "FBGEMM TBE + TorchRec"
PLAIN = "nn.EmbeddingBag + PyTorch"
ROW_PASSES = 6
"""Rows moved per lookup of a fused step: read by the forward and the backward pass, gradient
written and read, row read and written by the update."""

Forward = Callable[[IdBatch, Tensor], Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SparseStepKernels(KernelSettings):
    """The step with SGD."""

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields each distribution and size."""
        self.apply()
        limits = self.limits()
        for dim in self.dims:
            steps = _steps(build_tables(self.table_sizes, dim, "sgd", self.on), self.tables)
            num_vectors = self.tables + 1
            order = torchrec_columns(dim, num_vectors).to(self.on)
            _check(self.table_sizes, dim, steps, order)
            for distribution, size in itertools.product(("uniform", "zipf"), self.batch_sizes):
                generator = torch.Generator().manual_seed(6)
                width = reference.interaction_width(num_vectors, dim)
                gradient = torch.full((size, width), 1e-3, device=self.on)
                bottoms = [
                    torch.randn(size, dim, generator=generator).to(self.on).requires_grad_()
                    for _ in range(NUM_BATCHES)
                ]
                ids = id_batches(self.table_sizes, size, distribution, self.on)
                pairs = list(zip(map(IdBatch.from_ids, ids), bottoms, strict=True))
                upstream = {PEER: gradient[:, order].contiguous()}
                yield kernel_group(
                    f"{distribution}, D={dim}, B={size:,}",
                    {
                        name: in_turns(_step(*step, upstream.get(name, gradient)), pairs)
                        for name, step in steps.items()
                    },
                    limits,
                    peer=PEER,
                    num_bytes=4.0 * (ROW_PASSES * size * self.tables * dim + 2 * gradient.numel()),
                    flops=3 * interaction_flops(size, num_vectors, dim),
                )


def _steps(
    implementations: dict[str, Tables], num_tables: int
) -> dict[str, tuple[Tables, Forward]]:
    """Returns (tables, forward pass) of each implementation, the fused one first."""
    ours = implementations[OURS]
    assert isinstance(ours, OurTables)
    bags = implementations[EMBEDDING_BAG]
    steps: dict[str, tuple[Tables, Forward]] = {
        OURS: (ours, ours.look_up_and_interact),
        UNFUSED: (ours, lambda ids, bottom: our_interaction(bottom, ours.look_up(ids))),
        PLAIN: (bags, lambda ids, bottom: plain_interaction(bottom, bags.look_up(ids))),
    }
    if FBGEMM in implementations:
        fbgemm = implementations[FBGEMM]
        arch = interaction_arch(num_tables)
        steps[PEER] = (fbgemm, lambda ids, bottom: arch(bottom, fbgemm.look_up(ids)))
    return steps


def _step(tables: Tables, forward: Forward, gradient: Tensor) -> Callable[[IdBatch, Tensor], None]:
    def run(ids: IdBatch, bottom: Tensor) -> None:
        bottom.grad = None
        forward(ids, bottom).backward(gradient)  # type: ignore[no-untyped-call]
        tables.update()

    return run


def _check(
    table_sizes: Sequence[int], dim: int, steps: dict[str, tuple[Tables, Forward]], order: Tensor
) -> None:
    """Compares output, gradient and weights of one step with float64."""
    batch = IdBatch.from_ids(id_batches(table_sizes, 256, "zipf", order.device, count=1)[0])
    touched = TouchedRows([batch])
    generator = torch.Generator().manual_seed(7)
    width = reference.interaction_width(len(table_sizes) + 1, dim)
    gradient = torch.randn(256, width, generator=generator).to(order.device)
    gradient[:, order.numel() :] = 0  # Only ours pads its output.
    bottom = torch.randn(256, dim, generator=generator).to(order.device)

    for name, (tables, forward) in steps.items():
        weights, numbers = touched.of(tables), touched.numbers(batch)
        to_output, to_vectors, to_bottom = error_bounds.dot_interaction(
            weights[numbers], bottom, gradient
        )
        lookups = numbers.reshape(-1), to_vectors.reshape(-1, dim)
        to_weights, _ = error_bounds.updated(
            *("sgd", Bounded.exact(weights), {}, *lookups),
            lr=LEARNING_RATE,
            step=1,
            in_chunks=False,
        )
        leaf = bottom.clone().requires_grad_()
        output = forward(batch, leaf)
        output.backward(gradient[:, order] if name == PEER else gradient)  # type: ignore[no-untyped-call]
        tables.update()
        assert leaf.grad is not None
        output = output.detach() if name == PEER else output.detach()[:, order]
        check_error(f"{name}, output", output, to_output[:, order])
        check_error(f"{name}, gradient of bottom", leaf.grad, to_bottom)
        check_error(f"{name}, weights", touched.of(tables), to_weights)


CASE = SparseStepKernels
