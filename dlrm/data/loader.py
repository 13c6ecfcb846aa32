# SPDX-License-Identifier: Apache-2.0
"""Batches of a split, read ahead in threads and widened on the device."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future

import torch

from dlrm.data.batch import Batch, NarrowBatch
from dlrm.data.sources import RowSource

_READER_THREADS = 2
"""Readers wait for the disk, or run NumPy without the interpreter's lock; two keep both busy."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BatchLoader:
    """The batches of one split.

    Attributes:
        source: rows.
        batch_size: rows of a batch.
        device: where batches are wanted.
        drop_last: leave out the last, shorter batch (training), or yield it (evaluation).
        shuffle: permute the batches of each epoch (not the rows inside).
        seed: of the permutations.
        subset: share of the batches to use, from the front; None uses all.
        read_ahead: batches prepared while the model works; 0 reads when asked.
        check_ids: refuse ids outside their tables, by feature, row and value.
    """

    source: RowSource
    batch_size: int
    device: torch.device
    drop_last: bool
    shuffle: bool = False
    seed: int = 0
    subset: float | None = None
    read_ahead: int = 4
    check_ids: bool = True

    def __post_init__(self) -> None:
        """Refuses a split too small for a batch."""
        if self.num_batches == 0:
            raise ValueError(
                f"--batch_size {self.batch_size} leaves no whole batch of {self.source.num_rows} "
                f"rows{'' if self.subset is None else f' x --dataset_subset {self.subset}'}; "
                "use a smaller one"
            )

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        rows = self.source.num_rows
        whole = rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)
        return whole if self.subset is None else int(whole * self.subset)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch from `start` on, always in the same order."""
        queued = self.narrow_batches(epoch, start)
        return self._to_cuda(queued) if self.device.type == "cuda" else map(_widen, queued)

    def narrow_batches(self, epoch: int = 0, start: int = 0) -> Iterator[NarrowBatch]:
        """Yields the same batches as they leave the reader threads, on the host."""
        order = list(range(self.num_batches))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.num_batches, generator=generator).tolist()
        return self._read_ahead(order[start:])

    def _read(self, index: int) -> NarrowBatch:
        start = index * self.batch_size
        stop = min(start + self.batch_size, self.source.num_rows)
        columns = self.source.read(start, stop)
        if self.check_ids:
            columns.check_ids(self.source.spec, "dataset", start)
        return NarrowBatch.from_columns(columns, pin_memory=self.device.type == "cuda")

    def _read_ahead(self, indices: list[int]) -> Iterator[NarrowBatch]:
        if self.read_ahead == 0:
            yield from map(self._read, indices)
            return
        pool = concurrent.futures.ThreadPoolExecutor(_READER_THREADS, "reader")
        queue: collections.deque[Future[NarrowBatch]] = collections.deque()
        try:
            for index in indices:
                queue.append(pool.submit(self._read, index))
                if len(queue) > self.read_ahead:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _to_cuda(self, queued: Iterator[NarrowBatch]) -> Iterator[Batch]:
        """Copies each batch on a stream of its own while the model works on the one before."""
        copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

        def start_copy(host: NarrowBatch) -> NarrowBatch:
            with torch.cuda.stream(copies):
                return host.to(self.device)

        ahead: NarrowBatch | None = None
        for host in queued:
            current, ahead = ahead, start_copy(host)
            if current is not None:
                yield self._arrive(current, copies)
        if ahead is not None:
            yield self._arrive(ahead, copies)

    def _arrive(self, batch: NarrowBatch, copies: torch.cuda.Stream) -> Batch:
        stream = torch.cuda.current_stream(self.device)
        stream.wait_stream(copies)
        batch.record_stream(stream)
        return batch.widen()


def _widen(batch: NarrowBatch) -> Batch:
    return batch.widen()
