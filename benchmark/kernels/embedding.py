# SPDX-License-Identifier: Apache-2.0
"""Lookup, gradient and update, compared with EmbeddingBag and FBGEMM."""

from collections.abc import Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

from benchmark.kernels.case import OURS, KernelCase, Rotation, id_batches
from benchmark.kernels.check import TouchedRows, check_error
from benchmark.kernels.stopwatch import Work
from benchmark.kernels.tables import (
    FBGEMM,
    LEARNING_RATE,
    IdBatch,
    Tables,
    build_tables,
)
from benchmark.peers.fbgemm_embedding import FusedRule
from cuda_ext import error_bounds, ops
from cuda_ext.error_bounds import Bounded

RULES: tuple[FusedRule, ...] = get_args(FusedRule)
ROW_PASSES = 5
"""Rows moved per lookup: read and written by the lookup; gradient and row read, row written."""


def embedding_cases(
    table_sizes: Sequence[int], dim: int, batch_sizes: Sequence[int]
) -> Iterator[KernelCase]:
    """Yields a case per optimizer, distribution and size, checked in float64.

    Args:
        table_sizes: rows of each table.
        dim: D.
        batch_sizes: all values of B.
    """
    for rule in RULES:
        implementations = build_tables(table_sizes, dim, rule)
        _check(table_sizes, dim, rule, implementations)
        for distribution in ("uniform", "zipf"):
            for batch_size in batch_sizes:
                batches = [
                    IdBatch.from_ids(ids)
                    for ids in id_batches(table_sizes, batch_size, distribution)
                ]
                gradient = torch.full((batch_size, len(table_sizes), dim), 1e-3)
                yield KernelCase(
                    name=f"{rule}, {distribution}, D={dim}, B={batch_size:,}",
                    candidates={
                        name: _step(tables, Rotation(batches), gradient)
                        for name, tables in implementations.items()
                    },
                    peer=FBGEMM if FBGEMM in implementations else None,
                    num_bytes=4.0 * ROW_PASSES * gradient.numel(),
                )


def _step(tables: Tables, batches: Rotation[IdBatch], gradient: Tensor) -> Work:
    def run() -> None:
        tables.backward(tables.look_up(batches()), gradient)
        tables.update()

    return run


def _check(
    table_sizes: Sequence[int], dim: int, rule: FusedRule, implementations: dict[str, Tables]
) -> None:
    """Compares the weights after two steps with float64."""
    batches = [IdBatch.from_ids(ids) for ids in id_batches(table_sizes, 512, "zipf", count=2)]
    shape = (512, len(table_sizes), dim)
    generator = torch.Generator().manual_seed(5)
    gradients = [torch.randn(shape, generator=generator) for _ in batches]
    touched = TouchedRows(batches)
    weights = touched.of(implementations[OURS])
    bound, state = Bounded.exact(weights), ops.row_optimizer_state(rule, weights)
    states = {name: Bounded.exact(tensor) for name, tensor in state.items()}
    for step, (batch, gradient) in enumerate(zip(batches, gradients, strict=True), start=1):
        rows, flat = touched.numbers(batch).reshape(-1), Bounded.exact(gradient.reshape(-1, dim))
        bound, states = error_bounds.updated(
            *(rule, bound, states, rows, flat), lr=LEARNING_RATE, step=step, in_chunks=False
        )
    for name, tables in implementations.items():
        for batch, gradient in zip(batches, gradients, strict=True):
            tables.backward(tables.look_up(batch), gradient)
            tables.update()
        check_error(f"{rule}, {name}", touched.of(tables), bound)
