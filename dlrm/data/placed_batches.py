# SPDX-License-Identifier: Apache-2.0
"""Batches of all ranks, cut to what one rank computes and looks up for the others.

Letters: B samples of all ranks, b of this one, F tables, M numerical features.
"""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dlrm.data.batch import Batch
from dlrm.data.read_ahead import iterate_ahead
from dlrm.nn.exchange import ExchangedLookups, plan_lookups, share_bounds, wanted_columns
from dlrm.nn.table_placement import Placement


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedBatch:
    """What a rank sees of a batch.

    Attributes:
        numerical: [b, M] float16 or float32.
        ids: what this rank looks up, and receives.
        label: [b] float32, 0 or 1.
        num_rows: B.
    """

    numerical: Tensor
    ids: ExchangedLookups
    label: Tensor
    num_rows: int

    def __len__(self) -> int:
        return self.label.shape[0]


class GlobalBatches(Protocol):
    """The batches of all ranks."""

    @property
    def batch_size(self) -> int:
        """B."""
        ...

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        ...

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch from `start` on, on the host."""
        ...


class PlacedBatches:
    """The batches of a rank.

    What is looked up for whom is worked out on the host, in a thread, while the model works on the
    batches before: that is all of the distribution of the input.

    Args:
        source: the batches of all ranks, the same on every rank.
        placement: of the tables.
        rank: this one.
        device: where the batches are wanted.
        hash_indices: take ids modulo the table size.
        read_ahead: batches prepared while the model works; 0 prepares when asked.
    """

    def __init__(
        self,
        source: GlobalBatches,
        placement: Placement,
        rank: int,
        device: torch.device,
        *,
        hash_indices: bool = False,
        read_ahead: int = 2,
    ) -> None:
        self._source = source
        self._placement = placement
        self._rank = rank
        self._device = device
        self._hash_indices = hash_indices
        self._read_ahead = read_ahead
        self._wanted = wanted_columns(placement, rank)
        self._copied = placement.of_kind("replicate")
        self.batch_size = source.batch_size
        self.num_batches = source.num_batches

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[PlacedBatch]:
        """Yields the batches of an epoch from `start` on, always in the same order."""
        placed = map(self._place, self._source.batches(epoch, start))
        for batch in iterate_ahead(placed, self._read_ahead):
            yield dataclasses.replace(
                batch,
                numerical=batch.numerical.to(self._device, non_blocking=True),
                ids=batch.ids.to(self._device),
                label=batch.label.to(self._device, non_blocking=True),
            )

    def _place(self, batch: Batch) -> PlacedBatch:
        num_rows = len(batch)
        bounds = share_bounds(num_rows, self._placement.world_size)
        mine = slice(int(bounds[self._rank]), int(bounds[self._rank + 1]))
        ids = batch.ids.numpy()
        if self._hash_indices:
            ids = ids % np.array([table.rows for table in self._placement.tables])
        lookups = plan_lookups(
            self._placement,
            self._rank,
            {i: ids[:, i] for i in self._wanted},
            ids[mine][:, self._copied],
            num_rows,
        )
        return PlacedBatch(batch.numerical[mine], lookups, batch.label[mine], num_rows)
