# SPDX-License-Identifier: Apache-2.0
"""Reads a rank's columns and rows of each batch.

From its local batch, a rank needs labels, numerical features and the ids for replicated tables.
From the whole batch, it needs the ids for the tables whose shards it stores. Split binary reads
only these rows and columns, parquet only these columns.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.data.batch import Batch, SplitBatches
from dlrm.data.loader import READER_THREADS, BatchLoader
from dlrm.data.open_split import SplitPass, load_rows, open_split
from dlrm.data.opened import OpenedDataset
from dlrm.distributed.exchange import IntArray, rank_bounds
from dlrm.distributed.placement import Placement
from recsys.ahead import call_ahead
from recsys.data.list_columns import ListColumn
from recsys.data.split_binary import SplitBinaryReader


@dataclasses.dataclass(frozen=True, slots=True)
class RankColumns:
    """The id columns that a rank reads, as numbers of features.

    Attributes:
        rank: number of this rank.
        world_size: number of ranks.
        batch_features: features whose ids it reads for the whole batch.
        local_features: features whose ids it reads only for its local batch.
    """

    rank: int
    world_size: int
    batch_features: tuple[int, ...]
    local_features: tuple[int, ...]

    @classmethod
    def of(cls, placement: Placement, rank: int) -> "RankColumns":
        """Returns the columns that a rank needs under a placement."""
        return cls(
            rank,
            placement.world_size,
            tuple(placement.sharded_on(rank)),
            tuple(placement.of_kind("replicate")),
        )

    @property
    def features(self) -> tuple[int, ...]:
        """All features whose ids the rank reads, in order."""
        return tuple(sorted(self.batch_features + self.local_features))

    def local_batch(self, num_rows: int) -> slice:
        """Returns the rank's samples of a batch of `num_rows` samples."""
        bounds = rank_bounds(num_rows, self.world_size)
        return slice(int(bounds[self.rank]), int(bounds[self.rank + 1]))


@dataclasses.dataclass(frozen=True, slots=True)
class RankIds:
    """The ids that a rank reads from a batch, on the host.

    Attributes:
        batch_ids: feature -> [B] int64 ids, for `RankColumns.batch_features`.
        local_ids: [b, replicated tables] int64 ids, for `RankColumns.local_features`.
        num_rows: B, samples of the batch over all ranks.
    """

    batch_ids: dict[int, IntArray]
    local_ids: IntArray
    num_rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class RankLists:
    """The lists that a rank reads from a batch.

    Attributes:
        of_batch: feature -> lists of the B samples, for `RankColumns.batch_features`; for a feature
            that is not a list, each has one id.
        local: the same for the local batch and `RankColumns.local_features`.
        num_rows: B, samples of the batch over all ranks.
    """

    of_batch: dict[int, ListColumn]
    local: dict[int, ListColumn]
    num_rows: int

    def hashed(self, table_sizes: Sequence[int]) -> "RankLists":
        """Returns the lists with all ids modulo the size of their table."""
        of_batch, local = (
            {i: dataclasses.replace(c, ids=c.ids % table_sizes[i]) for i, c in columns.items()}
            for columns in (self.of_batch, self.local)
        )
        return RankLists(of_batch, local, self.num_rows)


class ColumnLoader:
    """Reads only a rank's rows and columns of split binary.

    Args:
        rows: reader of the split.
        loader: determines the row range of each batch.
        columns: columns of this rank.
    """

    def __init__(self, rows: SplitBinaryReader, loader: BatchLoader, columns: RankColumns) -> None:
        self._rows = rows
        self._loader = loader
        self._columns = columns
        self.batch_size = loader.batch_size
        self.num_batches = loader.num_batches

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[RankIds | RankLists]]:
        """Yields an epoch's batches from number `start` on, read in threads."""
        ranges = self._loader.row_ranges(epoch, start)
        reads = (functools.partial(self._read, *rows) for rows in ranges)
        return call_ahead(reads, self._loader.read_ahead, READER_THREADS)

    def _read(self, start: int, stop: int) -> Batch[RankIds | RankLists]:
        columns, rows = self._columns, self._rows
        local = columns.local_batch(stop - start)
        local_range = (start + local.start, start + local.stop)
        dense = rows.read_dense(*local_range)
        numerical = torch.from_numpy(np.array(dense.numerical))
        label = torch.from_numpy(dense.label.astype(np.float32))
        if rows.spec.lists:
            of_batch = self._lists(columns.batch_features, start, stop)
            of_local = self._lists(columns.local_features, *local_range)
            return Batch(numerical, RankLists(of_batch, of_local, stop - start), label)
        local_ids = np.empty((len(dense), len(columns.local_features)), np.int64)
        for i, ids in enumerate(rows.read_ids(columns.local_features, *local_range)):
            local_ids[:, i] = ids
        columns_of_batch = rows.read_ids(columns.batch_features, start, stop)
        by_feature = zip(columns.batch_features, columns_of_batch, strict=True)
        batch_ids = {i: ids.astype(np.int64) for i, ids in by_feature}
        return Batch(numerical, RankIds(batch_ids, local_ids, stop - start), label)

    def _lists(self, features: Sequence[int], start: int, stop: int) -> dict[int, ListColumn]:
        rows, singles = self._rows, len(self._rows.spec.categorical)
        by_feature = {i: rows.read_list(i, start, stop) for i in features if i >= singles}
        alone = [i for i in features if i < singles]
        one_each = np.arange(stop - start + 1)
        for i, ids in zip(alone, rows.read_ids(alone, start, stop), strict=True):
            by_feature[i] = ListColumn(ids, one_each)
        return {i: by_feature[i] for i in features}


class CutBatches:
    """Slices a rank's local batches out of whole batches.

    Args:
        source: whole batches, the same on every rank.
        columns: columns of this rank.
        features: features of the batches' id columns, in order; None if they have all features.
    """

    def __init__(
        self,
        source: SplitBatches[Tensor],
        columns: RankColumns,
        features: Sequence[int] | None = None,
    ) -> None:
        self._source = source
        self._columns = columns
        in_order = range(max(columns.features, default=-1) + 1) if features is None else features
        self._number = {feature: i for i, feature in enumerate(in_order)}
        self.batch_size = source.batch_size
        self.num_batches = source.num_batches

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[RankIds]]:
        """Yields the batches of an epoch from number `start` on."""
        return map(self._cut, self._source.batches(epoch, start))

    def _cut(self, batch: Batch[Tensor]) -> Batch[RankIds]:
        columns, ids = self._columns, batch.ids.to(torch.int64).numpy()
        local = columns.local_batch(len(batch))
        cut = RankIds(
            {i: ids[:, self._number[i]] for i in columns.batch_features},
            ids[local][:, [self._number[i] for i in columns.local_features]],
            len(batch),
        )
        return Batch(batch.numerical[local], cut, batch.label[local])


def open_rank_split(
    config: DlrmConfig, dataset: OpenedDataset, columns: RankColumns, wanted: SplitPass
) -> SplitBatches[RankIds | RankLists]:
    """Opens a rank's local batches of a split.

    Args:
        config: settings of the run.
        dataset: dataset of the run.
        columns: columns of this rank.
        wanted: split, batch size and order of batches.

    Raises:
        DatasetError: the split is missing or damaged.
    """
    host, features = torch.device("cpu"), None
    if config.data.has_columns:
        check_ids = not config.model.hash_indices
        rows = dataset.columns(wanted.split, check_ids=check_ids)
        return ColumnLoader(rows, load_rows(config, rows, wanted, host), columns)
    if config.data.dataset_type == "parquet":
        features = columns.features
        dataset = dataset.with_features(features)
    return CutBatches(open_split(config, dataset, wanted, host), columns, features)
