# SPDX-License-Identifier: Apache-2.0
"""A case of a kernel benchmark, its candidates and inputs."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from benchmark.stopwatch import CPU, Work
from dlrm.data.synthetic import draw_ids

T = TypeVar("T")

OURS = "ours"
NUM_BATCHES = 4
"""Batches that take turns, so that no candidate finds the rows of the last step in the cache."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KernelCase:
    """The same work, done by several implementations.

    Attributes:
        name: which work, at which sizes.
        candidates: implementation -> one call of it.
        peer: the implementation that ratios are quoted over; None where it is not installed.
        num_bytes: least traffic between memory and the chip.
        flops: floating point operations that the result needs.
    """

    name: str
    candidates: Mapping[str, Work]
    peer: str | None
    num_bytes: float
    flops: float = 0.0


class Rotation(Generic[T]):
    """Hands out its items in turns, without end.

    Args:
        items: at least one.
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
    """Returns `count` batches of ids, [B, F] int64, reproducibly."""
    generator = torch.Generator(device).manual_seed(1)
    return [
        draw_ids(table_sizes, batch_size, distribution, generator, device) for _ in range(count)
    ]


def table_major(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ids in the layout of FBGEMM and TorchRec.

    Args:
        ids: [B, F], one per feature.

    Returns:
        (values [F * B], all ids of the first feature first; offsets [F * B + 1]).
    """
    values = ids.t().reshape(-1).contiguous()
    return values, torch.arange(values.numel() + 1, dtype=torch.int64)


def row_offsets(table_sizes: Sequence[int], device: torch.device = CPU) -> Tensor:
    """Returns each table's first row and the end, [F + 1]."""
    starts = list(itertools.accumulate(table_sizes, initial=0))
    return torch.tensor(starts, dtype=torch.int64, device=device)


def upper_triangle_columns(num_vectors: int) -> Tensor:
    """Returns our number of each of TorchRec's pairs.

    Theirs are ordered by i, then j > i; ours by j, then i.
    """
    i, j = torch.triu_indices(num_vectors, num_vectors, 1)
    numbers: Tensor = j * (j - 1) // 2 + i
    return numbers
