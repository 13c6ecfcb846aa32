# SPDX-License-Identifier: Apache-2.0
"""What one of several ranks reads of a batch of all of them.

A rank needs labels, numerical features and the ids of tables with a copy everywhere for its own
rows, and the ids of tables of which it alone has rows for all rows. Nothing else is read where the
files allow it: split binary has a file per column and rows at known places, parquet columns.
Letters: B samples of all ranks, b of this one, F tables, M numerical features.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.data.batch import Batch, BatchSource
from dlrm.data.loader import READER_THREADS, BatchLoader, call_ahead
from dlrm.data.open_split import SplitPass, open_split
from dlrm.distributed.exchange import IntArray, share_bounds, wanted_columns
from dlrm.distributed.placement import Placement
from recsys.data.feature_spec import FeatureSpec
from recsys.data.split_binary import SplitBinaryReader


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Which columns, and of which rows, a rank needs.

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
    def of(cls, placement: Placement, rank: int) -> "Share":
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
        bounds = share_bounds(num_rows, self.world_size)
        return slice(int(bounds[self.rank]), int(bounds[self.rank + 1]))


@dataclasses.dataclass(frozen=True, slots=True)
class BatchShare:
    """A rank's share of a batch, on the host.

    Attributes:
        numerical: [b, M] float16 or float32.
        label: [b] float32, 0 or 1.
        of_all_rows: table -> [B] int64 ids.
        of_own_rows: [b, tables with a copy on every rank] int64 ids.
        num_rows: B.
    """

    numerical: Tensor
    label: Tensor
    of_all_rows: dict[int, IntArray]
    of_own_rows: IntArray
    num_rows: int


class ShareSource(Protocol):
    """A rank's shares of the batches of all ranks."""

    @property
    def batch_size(self) -> int:
        """B."""
        ...

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        ...

    def shares(self, epoch: int = 0, start: int = 0) -> Iterator[BatchShare]:
        """Yields the shares of an epoch from `start` on."""
        ...


class ShareLoader:
    """Reads a rank's shares, column by column and row by row.

    Args:
        rows: of all ranks.
        loader: says which rows make which batch.
        share: of this rank.
    """

    def __init__(self, rows: SplitBinaryReader, loader: BatchLoader, share: Share) -> None:
        self._rows = rows
        self._loader = loader
        self._share = share
        self.batch_size = loader.batch_size
        self.num_batches = loader.num_batches

    def shares(self, epoch: int = 0, start: int = 0) -> Iterator[BatchShare]:
        """Yields the shares of an epoch from `start` on, read ahead in threads."""
        ranges = self._loader.row_ranges(epoch, start)
        reads = (functools.partial(self._read, *rows) for rows in ranges)
        return call_ahead(reads, self._loader.read_ahead, READER_THREADS)

    def _read(self, start: int, stop: int) -> BatchShare:
        share, rows = self._share, self._rows
        mine = share.own_rows(stop - start)
        own = (start + mine.start, start + mine.stop)
        dense = rows.read_dense(*own)
        of_own = np.empty((len(dense), len(share.of_own_rows)), np.int64)
        for i, ids in enumerate(rows.read_ids(share.of_own_rows, *own)):
            of_own[:, i] = ids
        of_all = rows.read_ids(share.of_all_rows, start, stop)
        return BatchShare(
            torch.from_numpy(np.array(dense.numerical)),
            torch.from_numpy(dense.label.astype(np.float32)),
            {i: ids.astype(np.int64) for i, ids in zip(share.of_all_rows, of_all, strict=True)},
            of_own,
            stop - start,
        )


class CutBatches:
    """Cuts a rank's shares out of whole batches.

    Args:
        source: the batches of all ranks, the same on every rank.
        share: of this rank.
        features: tables whose ids the batches have, in that order; None for all.
    """

    def __init__(
        self, source: BatchSource[Tensor], share: Share, features: Sequence[int] | None = None
    ) -> None:
        self._source = source
        self._share = share
        places = range(max(share.features, default=-1) + 1) if features is None else features
        self._column = {feature: i for i, feature in enumerate(places)}
        self.batch_size = source.batch_size
        self.num_batches = source.num_batches

    def shares(self, epoch: int = 0, start: int = 0) -> Iterator[BatchShare]:
        """Yields the shares of an epoch from `start` on."""
        return map(self._cut, self._source.batches(epoch, start))

    def _cut(self, batch: Batch[Tensor]) -> BatchShare:
        share, ids = self._share, batch.ids.numpy()
        mine = share.own_rows(len(batch))
        return BatchShare(
            batch.numerical[mine],
            batch.label[mine],
            {i: ids[:, self._column[i]] for i in share.of_all_rows},
            ids[mine][:, [self._column[i] for i in share.of_own_rows]],
            len(batch),
        )


def open_shares(
    config: DlrmConfig, spec: FeatureSpec, share: Share, wanted: SplitPass
) -> ShareSource:
    """Opens a rank's shares of the batches of a split.

    Args:
        config: of the run.
        spec: the columns of the dataset.
        share: of this rank.
        wanted: the split and its batches.

    Raises:
        DatasetError: the split is missing or damaged.
    """
    host, features = torch.device("cpu"), None
    if config.data.dataset_type == "parquet":
        features = share.features
        spec = spec.with_features(features)
    loader = open_split(config, spec, wanted, host)
    if isinstance(loader, BatchLoader) and isinstance(loader.source, SplitBinaryReader):
        return ShareLoader(loader.source, loader, share)
    return CutBatches(loader, share, features)
