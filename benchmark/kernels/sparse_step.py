# SPDX-License-Identifier: Apache-2.0
"""Training step without MLPs: lookup, interaction, backward, table update."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmark.kernels.case import (
    NUM_BATCHES,
    OURS,
    KernelCase,
    Rotation,
    id_batches,
    upper_triangle_columns,
)
from benchmark.kernels.check import TouchedRows, check_error
from benchmark.kernels.interaction import (
    interaction_flops,
    our_interaction,
    plain_interaction,
)
from benchmark.kernels.stopwatch import Work
from benchmark.kernels.tables import (
    EMBEDDING_BAG,
    FBGEMM,
    LEARNING_RATE,
    IdBatch,
    OurTables,
    Tables,
    build_tables,
)
from benchmark.peers.torchrec_interaction import interaction_arch
from cuda_ext import error_bounds, reference
from cuda_ext.error_bounds import Bounded

FUSED = OURS
UNFUSED = "ours, unfused"
PEER = "FBGEMM TBE + TorchRec"
PLAIN = "nn.EmbeddingBag + PyTorch"
ROW_PASSES = 6
"""Rows moved per lookup of a fused step: read by the forward and the backward pass, gradient
written and read, row read and written by the update."""

Forward = Callable[[IdBatch, Tensor], Tensor]


def sparse_step_cases(
    table_sizes: Sequence[int], dim: int, batch_sizes: Sequence[int]
) -> Iterator[KernelCase]:
    """Yields a case per distribution and size, with SGD.

    Args:
        table_sizes: rows of each table.
        dim: D.
        batch_sizes: all values of B.
    """
    implementations = build_tables(table_sizes, dim, "sgd")
    steps = _steps(implementations, len(table_sizes))
    num_vectors = len(table_sizes) + 1
    width = reference.interaction_width(num_vectors, dim)
    order = torch.cat([torch.arange(dim), dim + upper_triangle_columns(num_vectors)])
    _check(table_sizes, dim, steps, order)
    for distribution in ("uniform", "zipf"):
        for batch_size in batch_sizes:
            generator = torch.Generator().manual_seed(6)
            gradient = torch.full((batch_size, width), 1e-3)
            bottoms = [
                torch.randn(batch_size, dim, generator=generator).requires_grad_()
                for _ in range(NUM_BATCHES)
            ]
            ids = id_batches(table_sizes, batch_size, distribution)
            batches = [IdBatch.from_ids(batch) for batch in ids]
            lookups = 4.0 * batch_size * len(table_sizes) * dim
            yield KernelCase(
                name=f"{distribution}, D={dim}, B={batch_size:,}",
                candidates={
                    name: _work(
                        forward,
                        tables,
                        Rotation(list(zip(batches, bottoms, strict=True))),
                        gradient if name != PEER else gradient[:, order].contiguous(),
                    )
                    for name, (tables, forward) in steps.items()
                },
                peer=PEER if PEER in steps else None,
                num_bytes=ROW_PASSES * lookups + 2 * 4.0 * gradient.numel(),
                flops=3 * interaction_flops(batch_size, num_vectors, dim),
            )


def _steps(
    implementations: dict[str, Tables], num_tables: int
) -> dict[str, tuple[Tables, Forward]]:
    """Returns (tables, forward pass) of each implementation, the fused one first."""
    ours = implementations[OURS]
    assert isinstance(ours, OurTables)
    bags = implementations[EMBEDDING_BAG]
    steps: dict[str, tuple[Tables, Forward]] = {
        FUSED: (ours, ours.look_up_and_interact),
        UNFUSED: (ours, lambda ids, bottom: our_interaction(bottom, ours.look_up(ids))),
        PLAIN: (bags, lambda ids, bottom: plain_interaction(bottom, bags.look_up(ids))),
    }
    if FBGEMM in implementations:
        fbgemm = implementations[FBGEMM]
        arch = interaction_arch(num_tables)
        steps[PEER] = (fbgemm, lambda ids, bottom: arch(bottom, fbgemm.look_up(ids)))
    return steps


def _work(
    forward: Forward, tables: Tables, inputs: Rotation[tuple[IdBatch, Tensor]], gradient: Tensor
) -> Work:
    def run() -> None:
        ids, bottom = inputs()
        bottom.grad = None
        forward(ids, bottom).backward(gradient)  # type: ignore[no-untyped-call]
        tables.update()

    return run


def _check(
    table_sizes: Sequence[int], dim: int, steps: dict[str, tuple[Tables, Forward]], order: Tensor
) -> None:
    """Compares output, gradient and weights of one step with float64."""
    batch = IdBatch.from_ids(id_batches(table_sizes, 256, "zipf", count=1)[0])
    touched = TouchedRows([batch])
    generator = torch.Generator().manual_seed(7)
    width = reference.interaction_width(len(table_sizes) + 1, dim)
    gradient = torch.randn(256, width, generator=generator)
    gradient[:, order.numel() :] = 0  # Padding is no output of the others.
    bottom = torch.randn(256, dim, generator=generator)

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
