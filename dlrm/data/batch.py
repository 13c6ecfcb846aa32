# SPDX-License-Identifier: Apache-2.0
"""Batches of samples, in the dtypes of the storage and of the model."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from cuda_ext import ops
from dlrm.nn.bags import Bags
from recsys.data.click_columns import ClickColumns
from recsys.train.memory import HostBatch

LookupsT_co = TypeVar("LookupsT_co", covariant=True)
LookupsT_contra = TypeVar("LookupsT_contra", contravariant=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch(Generic[LookupsT_co]):
    """Features and labels of the samples of a step.

    Attributes:
        numerical: [B, M] float16 or float32.
        ids: [B, F] int32 or int64 on one device, `Bags` if there are lists; on several devices, a
            rank's ids or lookups.
        label: [B] float32, 0 or 1.
    """

    numerical: Tensor
    ids: LookupsT_co
    label: Tensor

    def __len__(self) -> int:
        return self.label.shape[0]


class SplitBatches(Protocol[LookupsT_co]):
    """The batches of a split."""

    @property
    def batch_size(self) -> int:
        """Samples of a batch, over all ranks."""
        ...

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        ...

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[LookupsT_co]]:
        """Yields an epoch's batches from number `start` on, in a fixed order."""
        ...


class ReusedBuffers(Protocol):
    """Buffers that are reused for another batch once this one is copied."""

    def was_copied(self, copied: torch.cuda.Event) -> None:
        """Takes the event at the end of the copy from these buffers."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class NarrowBatch(HostBatch):
    """A batch in storage dtypes: 89 bytes per Criteo sample, not 264.

    Attributes:
        numerical: [B, M] float16 or float32.
        ids: (numbers of n features, [n, B] ids) for each integer dtype.
        label: [B] bool.
        buffers: pinned buffers that contain the batch; None if it has its own memory.
        bags: ids of a dataset with lists, instead of `ids`; None without lists.
    """

    numerical: Tensor
    ids: tuple[tuple[tuple[int, ...], Tensor], ...]
    label: Tensor
    buffers: "ReusedBuffers | None" = None
    bags: Bags | None = None

    @classmethod
    def from_columns(cls, columns: ClickColumns) -> "NarrowBatch":
        """Copies columns into tensors, one tensor of ids per dtype."""
        if columns.lists:
            numerical, label = np.array(columns.numerical), np.array(columns.label)
            bags = Bags.from_columns(columns)
            return cls(torch.from_numpy(numerical), (), torch.from_numpy(label), bags=bags)
        groups = []
        for features in features_by_dtype(columns).values():
            stacked = torch.from_numpy(np.stack([columns.categorical[i] for i in features]))
            groups.append((tuple(features), stacked))
        return cls(
            torch.from_numpy(np.array(columns.numerical)),
            tuple(groups),
            torch.from_numpy(np.array(columns.label)),
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "NarrowBatch":
        """Returns a batch with each tensor changed, in its own memory."""
        return NarrowBatch(
            change(self.numerical),
            tuple((features, change(ids)) for features, ids in self.ids),
            change(self.label),
            bags=None if self.bags is None else self.bags.map(change),
        )

    def to(self, device: torch.device) -> "NarrowBatch":
        """Enqueues the copy to a device on the current stream."""
        batch = HostBatch.to(self, device)
        if self.buffers is not None:
            self.buffers.was_copied(torch.cuda.current_stream(device).record_event())
        return batch

    def widen(self) -> Batch[Any]:
        """Converts the batch to the model's dtypes, on its device."""
        if self.bags is not None:
            return Batch(self.numerical, self.bags, self.label.to(torch.float32))
        if self.ids:
            features = [feature for group, _ in self.ids for feature in group]
            ids = ops.stack_ids([ids for _, ids in self.ids], features)
        else:
            ids = self.label.new_empty(len(self.label), 0, dtype=torch.int32)
        return Batch(self.numerical, ids, self.label.to(torch.float32))


def features_by_dtype(columns: ClickColumns) -> dict[np.dtype[np.signedinteger], list[int]]:
    """Returns the numbers of the categorical features of each dtype."""
    by_dtype: dict[np.dtype[np.signedinteger], list[int]] = {}
    for i, ids in enumerate(columns.categorical):
        by_dtype.setdefault(ids.dtype, []).append(i)
    return by_dtype


def mixed_seed(seed: int, *numbers: int) -> int:
    """Mixes the seed of a run with numbers, such as the number of the epoch."""
    for number in numbers:
        seed = seed * 1_000_003 + number
    return seed if -(2**63) <= seed < 2**63 else seed % 2**63  # the range of a generator's seed
