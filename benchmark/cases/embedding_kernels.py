# SPDX-License-Identifier: Apache-2.0
"""Lookup, gradient and update of tables, compared with EmbeddingBag and FBGEMM.

All are checked in float64. Inputs are converted to each layout before the clock starts. Our tables
use huge pages and check ids; FBGEMM's do neither.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import torch

from benchmark.case import Group
from benchmark.peers.tables import (
    FBGEMM,
    LEARNING_RATE,
    FusedRule,
    IdBatch,
    Tables,
    TouchedRows,
    build_tables,
)
from benchmark.side_by_side import (
    OURS,
    KernelSettings,
    check_error,
    id_batches,
    kernel_group,
)
from benchmark.stopwatch import in_turns
from cuda_ext import error_bounds, ops
from cuda_ext.error_bounds import Bounded

RULES: tuple[FusedRule, ...] = get_args(FusedRule)
ROW_PASSES = 5
"""Rows moved per lookup: read and written by the lookup; gradient and row read, row written."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingKernels(KernelSettings):
    """Tables of each optimizer."""

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields each optimizer, distribution and size."""
        self.apply()
        limits = self.limits()
        for dim, rule in itertools.product(self.dims, RULES):
            implementations = build_tables(self.table_sizes, dim, rule, self.on)
            _check(self.table_sizes, dim, rule, implementations, self.on)
            for distribution, size in itertools.product(("uniform", "zipf"), self.batch_sizes):
                gradient = torch.full((size, self.tables, dim), 1e-3, device=self.on)
                ids = id_batches(self.table_sizes, size, distribution, self.on)
                batches = [(IdBatch.from_ids(each), gradient) for each in ids]
                yield kernel_group(
                    f"{rule}, {distribution}, D={dim}, B={size:,}",
                    {
                        name: in_turns(tables.train, batches)
                        for name, tables in implementations.items()
                    },
                    limits,
                    peer=FBGEMM,
                    num_bytes=4.0 * ROW_PASSES * gradient.numel(),
                )


def _check(
    table_sizes: Sequence[int],
    dim: int,
    rule: FusedRule,
    implementations: dict[str, Tables],
    device: torch.device,
) -> None:
    """Compares the weights after two steps with float64."""
    batches = [
        IdBatch.from_ids(ids) for ids in id_batches(table_sizes, 512, "zipf", device, count=2)
    ]
    shape = (512, len(table_sizes), dim)
    generator = torch.Generator().manual_seed(5)
    gradients = [torch.randn(shape, generator=generator).to(device) for _ in batches]
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
            tables.train(batch, gradient)
        check_error(f"{rule}, {name}", touched.of(tables), bound)


CASE = EmbeddingKernels
