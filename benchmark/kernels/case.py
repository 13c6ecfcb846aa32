# SPDX-License-Identifier: Apache-2.0
"""A case of a kernel benchmark: its implementations and inputs."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from benchmark.kernels.stopwatch import CPU, Work
from dlrm.data.synthetic import draw_ids

T = TypeVar("T")

OURS = "ours"
NUM_BATCHES = 4
"""Batches used in turns, so that the rows of a step are not in the cache already."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KernelCase:
    """One computation, done by several implementations.

    Attributes:
        name: the computation and its sizes.
        candidates: implementation -> function that runs it once.
        peer: implementation to compare ours with; None if it is not installed.
        num_bytes: least traffic in bytes between memory and the chip.
        flops: number of floating-point operations.
    """

    name: str
    candidates: Mapping[str, Work]
    peer: str | None
    num_bytes: float
    flops: float = 0.0


class Rotation(Generic[T]):
    """Returns its items in turns, without end.

    Args:
        items: one or more items.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self.items = list(items)
        self._turns: Iterator[T] = itertools.cycle(self.items)

    def __call__(self) -> T:
        """Returns the next item."""
        return next(self._turns)


def id_batches(
    table_sizes: Sequence[int],
    batch_size: int,
    distribution: str,
    device: torch.device = CPU,
    count: int = NUM_BATCHES,
) -> list[Tensor]:
    """Draws `count` batches of ids, [B, F] int64, equal on every call."""
    generator = torch.Generator(device).manual_seed(1)
    sizes = torch.tensor(table_sizes, device=device)
    return [draw_ids(sizes, batch_size, distribution, generator) for _ in range(count)]


def table_major(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Converts ids to the layout of FBGEMM and TorchRec.

    Args:
        ids: [B, F].

    Returns:
        (values [F * B], all ids of the first feature first; offsets [F * B + 1]).
    """
    values = ids.t().reshape(-1).contiguous()
    return values, torch.arange(values.numel() + 1, dtype=torch.int64)


def row_offsets(table_sizes: Sequence[int], device: torch.device = CPU) -> Tensor:
    """Returns [F + 1] bounds of the tables in a joint table."""
    starts = list(itertools.accumulate(table_sizes, initial=0))
    return torch.tensor(starts, dtype=torch.int64, device=device)


def upper_triangle_columns(num_vectors: int) -> Tensor:
    """Returns the column in our dot interaction of each of TorchRec's columns.

    TorchRec orders pairs (i, j > i) by i, then j; we order them by j, then i.
    """
    i, j = torch.triu_indices(num_vectors, num_vectors, 1)
    numbers: Tensor = j * (j - 1) // 2 + i
    return numbers
