# SPDX-License-Identifier: Apache-2.0
"""A rank's samples of each batch, with the lookups that ranks exchange.

Letters: B samples of all ranks, b of this one.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from dlrm.data.batch import Batch, BatchSource
from dlrm.data.loader import iterate_ahead
from dlrm.distributed.columns import RankIds
from dlrm.distributed.exchange import ExchangedLookups, plan_lookups
from dlrm.distributed.placement import Placement


class ExchangedBatches:
    """The batches of a rank, with the lookups that the ranks exchange.

    What is looked up for whom is worked out on the host, in a thread, while the model works on the
    batches before: that is all of the distribution of the input.

    Args:
        source: the columns and rows that the rank reads of each batch.
        placement: of the tables.
        rank: this one.
        device: where the batches are wanted.
        hash_indices: take ids modulo the table size.
        read_ahead: batches prepared while the model works; 0 prepares when asked.
    """

    def __init__(
        self,
        source: BatchSource[RankIds],
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
        """Yields an epoch's batches from `start` on, always in one order."""
        planned = map(self._plan, self._source.batches(epoch, start))
        for batch in iterate_ahead(planned, self._read_ahead):
            yield dataclasses.replace(
                batch,
                numerical=batch.numerical.to(self._device, non_blocking=True),
                ids=batch.ids.to(self._device),
                label=batch.label.to(self._device, non_blocking=True),
            )

    def _plan(self, batch: Batch[RankIds]) -> Batch[ExchangedLookups]:
        of_all_rows, of_own_rows = batch.ids.of_all_rows, batch.ids.of_own_rows
        if self._hash_indices:
            sizes = [table.rows for table in self._placement.tables]
            of_all_rows = {i: ids % sizes[i] for i, ids in of_all_rows.items()}
            copied = self._placement.of_kind("replicate")
            of_own_rows = of_own_rows % np.array([sizes[i] for i in copied], np.int64)
        lookups = plan_lookups(
            self._placement, self._rank, of_all_rows, of_own_rows, batch.ids.num_rows
        )
        return Batch(batch.numerical, lookups, batch.label)
