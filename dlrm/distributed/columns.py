# SPDX-License-Identifier: Apache-2.0
"""The columns and rows of each batch that a rank reads.

A rank needs labels, numerical features and the ids of tables with a copy everywhere for its own
rows, and the ids of tables of which it alone has rows for all rows. Nothing else is read where the
files allow it: split binary has a file per column and rows at known places, parquet columns.
Letters: B samples of all ranks, b of this one, F tables, M numerical features.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.data.batch import Batch, BatchSource
from dlrm.data.loader import READER_THREADS, BatchLoader, call_ahead
from dlrm.data.open_split import SplitPass, open_split
from dlrm.distributed.exchange import IntArray, rank_bounds, wanted_columns
from dlrm.distributed.placement import Placement
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader


@dataclasses.dataclass(frozen=True, slots=True)
class RankColumns:
    """The columns that a rank reads, and of which rows.

    Attributes:
        rank: this one.
        world_size: ranks.
        of_all_rows: tables whose ids it needs for the batch of all ranks.
        of_own_rows: tables whose ids it needs for its own samples.
    """

    rank: int
    world_size: int
    of_all_rows: tuple[int, ...]
    of_own_rows: tuple[int, ...]

    @classmethod
    def of(cls, placement: Placement, rank: int) -> "RankColumns":
        """Returns what a rank needs under a placement."""
        return cls(
            rank,
            placement.world_size,
            tuple(wanted_columns(placement, rank)),
            tuple(placement.of_kind("replicate")),
        )

    @property
    def features(self) -> tuple[int, ...]:
        """Every table whose ids the rank needs."""
        return tuple(sorted(self.of_all_rows + self.of_own_rows))

    def own_rows(self, num_rows: int) -> slice:
        """Returns the rank's rows of a batch of all ranks."""
        bounds = rank_bounds(num_rows, self.world_size)
        return slice(int(bounds[self.rank]), int(bounds[self.rank + 1]))


@dataclasses.dataclass(frozen=True, slots=True)
class RankIds:
    """The ids that a rank reads of a batch, on the host.

    Attributes:
        of_all_rows: table -> [B] int64 ids.
        of_own_rows: [b, tables with a copy on every rank] int64 ids.
        num_rows: B.
    """

    of_all_rows: dict[int, IntArray]
    of_own_rows: IntArray
    num_rows: int


class ColumnLoader:
    """Reads a rank's batches, column by column and row by row.

    Args:
        rows: of all ranks.
        loader: says which rows make which batch.
        columns: of this rank.
    """

    def __init__(self, rows: SplitBinaryReader, loader: BatchLoader, columns: RankColumns) -> None:
        self._rows = rows
        self._loader = loader
        self._columns = columns
        self.batch_size = loader.batch_size
        self.num_batches = loader.num_batches

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[RankIds]]:
        """Yields an epoch's batches from `start` on, read ahead in threads."""
        ranges = self._loader.row_ranges(epoch, start)
        reads = (functools.partial(self._read, *rows) for rows in ranges)
        return call_ahead(reads, self._loader.read_ahead, READER_THREADS)

    def _read(self, start: int, stop: int) -> Batch[RankIds]:
        columns, rows = self._columns, self._rows
        mine = columns.own_rows(stop - start)
        own = (start + mine.start, start + mine.stop)
        dense = rows.read_dense(*own)
        of_own = np.empty((len(dense), len(columns.of_own_rows)), np.int64)
        for i, ids in enumerate(rows.read_ids(columns.of_own_rows, *own)):
            of_own[:, i] = ids
        of_all = rows.read_ids(columns.of_all_rows, start, stop)
        by_table = zip(columns.of_all_rows, of_all, strict=True)
        return Batch(
            torch.from_numpy(np.array(dense.numerical)),
            RankIds({i: ids.astype(np.int64) for i, ids in by_table}, of_own, stop - start),
            torch.from_numpy(dense.label.astype(np.float32)),
        )


class CutBatches:
    """Cuts a rank's batches out of those of all ranks.

    Args:
        source: the batches of all ranks, the same on every rank.
        columns: of this rank.
        features: tables whose ids the batches have, in that order; None for all.
    """

    def __init__(
        self,
        source: BatchSource[Tensor],
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
        """Yields the batches of an epoch from `start` on."""
        return map(self._cut, self._source.batches(epoch, start))

    def _cut(self, batch: Batch[Tensor]) -> Batch[RankIds]:
        columns, ids = self._columns, batch.ids.numpy()
        mine = columns.own_rows(len(batch))
        cut = RankIds(
            {i: ids[:, self._number[i]] for i in columns.of_all_rows},
            ids[mine][:, [self._number[i] for i in columns.of_own_rows]],
            len(batch),
        )
        return Batch(batch.numerical[mine], cut, batch.label[mine])


def open_rank_split(
    config: DlrmConfig, spec: FeatureSpec, columns: RankColumns, wanted: SplitPass
) -> BatchSource[RankIds]:
    """Opens a rank's batches of a split.

    Args:
        config: of the run.
        spec: the columns of the dataset.
        columns: of this rank.
        wanted: the split and its batches.

    Raises:
        DatasetError: the split is missing or damaged.
    """
    host, features = torch.device("cpu"), None
    if config.data.dataset_type == "parquet":
        features = columns.features
        spec = spec.with_features(features)
    loader = open_split(config, spec, wanted, host)
    if isinstance(loader, BatchLoader) and isinstance(loader.source, SplitBinaryReader):
        return ColumnLoader(loader.source, loader, columns)
    return CutBatches(loader, columns, features)
