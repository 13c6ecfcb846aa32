# SPDX-License-Identifier: Apache-2.0
"""Reads the rows of the next batches from disk, for tables in files."""

import dataclasses
from collections.abc import Generator, Iterator
from typing import Any

from dlrm.data.batch import Batch, SplitBatches
from dlrm.nn.bags import Bags
from dlrm.nn.embedding import JointEmbeddings
from recsys.ahead import iterate_ahead

_BATCHES_AHEAD = 2


@dataclasses.dataclass(frozen=True, slots=True)
class PrefetchedBatches:
    """The batches of a split, whose rows are in memory before the model needs them.

    Attributes:
        source: the batches.
        tables: the tables, in files.
    """

    source: SplitBatches[Any]
    tables: JointEmbeddings[Any]

    @property
    def batch_size(self) -> int:
        """Samples of a batch."""
        return self.source.batch_size

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return self.source.num_batches

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[Any]]:
        """Yields an epoch's batches from number `start` on, in a fixed order."""
        return iterate_ahead(self._with_rows(epoch, start), _BATCHES_AHEAD)

    def _with_rows(self, epoch: int, start: int) -> Generator[Batch[Any], None, None]:
        files = self.tables.files
        assert files is not None
        for batch in self.source.batches(epoch, start):
            ids = batch.ids
            lookups = (ids.ids, ids.offsets) if isinstance(ids, Bags) else (ids,)
            files.bring_in(self.tables.table_rows(*lookups))
            yield batch
