# SPDX-License-Identifier: Apache-2.0
"""Loads a rank's local batches, with the lookups that ranks exchange."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from dlrm.data.batch import Batch, SplitBatches
from dlrm.distributed.columns import RankIds, RankLists
from dlrm.distributed.exchange import ExchangedLookups, plan_bags, plan_lookups
from dlrm.distributed.placement import Placement
from dlrm.nn.bags import Bags
from recsys.ahead import iterate_ahead
from recsys.train.memory import HostBatch, copy_ahead


@dataclasses.dataclass(frozen=True, slots=True)
class _PlannedBatch(HostBatch):
    """A local batch, planned on the host, that will be copied to a GPU."""

    batch: Batch[ExchangedLookups]

    def map(self, change: Callable[[Tensor], Tensor]) -> "_PlannedBatch":
        """Returns the batch with each tensor changed."""
        batch = self.batch
        return _PlannedBatch(
            Batch(change(batch.numerical), batch.ids.map(change), change(batch.label))
        )


class ExchangedBatches:
    """The local batches of a rank, with its lookups for other ranks.

    A thread plans the lookups on the host while the model works on earlier batches. Batches for a
    GPU are pinned in this thread and copied during the previous step.

    Args:
        source: ids and local samples that the rank reads from each batch.
        placement: placement of the tables.
        rank: number of this rank.
        device: device of the batches.
        hash_indices: whether to reduce ids modulo the table size.
        read_ahead: number of batches to plan ahead of the model; 0 plans on demand.
    """

    def __init__(
        self,
        source: SplitBatches[RankIds | RankLists],
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
        self.batch_size = source.batch_size
        self.num_batches = source.num_batches

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[ExchangedLookups]]:
        """Yields the batches of an epoch from number `start` on."""
        is_gpu = self._device.type == "cuda"
        planned = (_PlannedBatch(self._plan(b)) for b in self._source.batches(epoch, start))
        host = (batch.pinned() for batch in planned) if is_gpu else planned
        with contextlib.closing(iterate_ahead(host, self._read_ahead)) as ahead:
            for batch in copy_ahead(ahead, self._device) if is_gpu else ahead:
                yield batch.batch

    def _plan(self, batch: Batch[RankIds | RankLists]) -> Batch[ExchangedLookups]:
        placement, rank, ids = self._placement, self._rank, batch.ids
        sizes = [table.rows for table in placement.tables]
        if isinstance(ids, RankLists):
            ids = ids.hashed(sizes) if self._hash_indices else ids
            local = Bags.from_lists(tuple(ids.local.values()), len(batch))
            lookups = plan_bags(placement, rank, ids.of_batch, local, ids.num_rows)
            return Batch(batch.numerical, lookups, batch.label)
        batch_ids, local_ids = ids.batch_ids, ids.local_ids
        if self._hash_indices:
            batch_ids = {i: ids % sizes[i] for i, ids in batch_ids.items()}
            replicated = placement.of_kind("replicate")
            local_ids = local_ids % np.array([sizes[i] for i in replicated], np.int64)
        lookups = plan_lookups(placement, rank, batch_ids, local_ids, ids.num_rows)
        return Batch(batch.numerical, lookups, batch.label)
