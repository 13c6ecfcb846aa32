# SPDX-License-Identifier: Apache-2.0
"""A ring of pinned buffers in which batches wait to be copied."""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dlrm.data.batch import NarrowBatch, features_by_dtype
from recsys.data.click_columns import ClickColumns


class PinnedBuffers:
    """Pinned memory for one batch at a time.

    Args:
        like: columns with the dtypes and widths of the batches.
        rows: number of samples in the longest batch.
    """

    def __init__(self, like: ClickColumns, rows: int) -> None:
        self._groups = features_by_dtype(like)
        self._label = _pinned(rows, like.label.dtype)
        self._width = like.numerical.shape[1]
        self._numerical = _pinned(rows * self._width, like.numerical.dtype)
        self._ids = [_pinned(rows * len(group), dtype) for dtype, group in self._groups.items()]
        # The same memory as arrays, for readers to fill.
        self._arrays = [flat.numpy() for flat in (self._label, self._numerical, *self._ids)]
        self._copied: torch.cuda.Event | None = None

    def columns(self, rows: int) -> ClickColumns:
        """Returns the memory for a batch of `rows` samples."""
        label, numerical, *flat_ids = self._arrays
        ids = {
            feature: flat[i * rows : (i + 1) * rows]
            for group, flat in zip(self._groups.values(), flat_ids, strict=True)
            for i, feature in enumerate(group)
        }
        return ClickColumns(
            label[:rows],
            numerical[: rows * self._width].reshape(rows, self._width),
            tuple(ids[feature] for feature in range(len(ids))),
        )

    def batch(self, rows: int) -> NarrowBatch:
        """Returns a batch of `rows` samples in these buffers."""
        # A batch takes the first elements of a buffer, so that a shorter one is contiguous too.
        ids = tuple(
            (tuple(group), flat[: len(group) * rows].view(len(group), rows))
            for group, flat in zip(self._groups.values(), self._ids, strict=True)
        )
        numerical = self._numerical[: rows * self._width].view(rows, self._width)
        return NarrowBatch(numerical, ids, self._label[:rows], self)

    def was_copied(self, copied: torch.cuda.Event) -> None:
        """Takes the event at the end of the copy from these buffers."""
        self._copied = copied

    def wait(self) -> None:
        """Waits for the end of the copy; usually it has ended already."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None


class PinnedRing:
    """Buffers that are allocated once and used by batches in turn.

    Pinning memory, or asking whether pinned memory is free again, would cost time in every batch.
    It is also not allowed while a CUDA graph is captured.

    Args:
        like: columns with the dtypes and widths of the batches.
        rows: number of samples in the longest batch.
        length: number of buffers; must exceed the batches being read, waiting or being copied.
    """

    def __init__(self, like: ClickColumns, rows: int, length: int) -> None:
        self._buffers = [PinnedBuffers(like, rows) for _ in range(length)]

    def turns(self) -> Iterator[PinnedBuffers]:
        """Yields the buffers in turn; waits until each was copied."""
        for buffers in itertools.cycle(self._buffers):
            buffers.wait()
            yield buffers


def _pinned(count: int, dtype: np.dtype[np.generic]) -> Tensor:
    return torch.from_numpy(np.empty(count, dtype)).pin_memory()
