# SPDX-License-Identifier: Apache-2.0
"""Batches of a split, read ahead in threads, widened on the device."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import torch
from torch import Tensor

from dlrm.data.batch import Batch, NarrowBatch
from dlrm.data.sources import RowSource, StreamedRows
from recsys.data.click_columns import ClickColumns
from recsys.errors import UserError

T = TypeVar("T")

READER_THREADS = 2
"""Readers wait for the disk, or run NumPy without the interpreter's lock; two keep both busy."""

_BLOCKS_AHEAD = 1
"""Blocks of a stream that are decoded while batches are cut from the one before."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BatchLoader:
    """The batches of one split.

    Rows that come as a stream are read as one, unless the batches are shuffled.

    Attributes:
        source: rows.
        batch_size: rows of a batch.
        device: where batches are wanted.
        drop_last: leave out the last, shorter batch (training), or yield it (evaluation).
        shuffle: permute the batches of each epoch (not the rows inside).
        seed: of the permutations.
        subset: share of the batches to use, from the front; None uses all.
        read_ahead: batches prepared while the model works; 0 reads when asked.
    """

    source: RowSource
    batch_size: int
    device: torch.device
    drop_last: bool
    shuffle: bool = False
    seed: int = 0
    subset: float | None = None
    read_ahead: int = 4

    def __post_init__(self) -> None:
        """Refuses a split too small for a batch."""
        check_any_batch(self.num_batches, self.batch_size, self.source.num_rows, self.subset)

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        return count_batches(self.source.num_rows, self.batch_size, self.drop_last, self.subset)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[Tensor]]:
        """Yields an epoch's batches from `start` on, always in one order."""
        return arrive(self.narrow_batches(epoch, start), self.device)

    def narrow_batches(self, epoch: int = 0, start: int = 0) -> Iterator[NarrowBatch]:
        """Yields the same batches on the host, as reader threads leave them."""
        if isinstance(self.source, StreamedRows) and not self.shuffle:
            return iterate_ahead(self._cut(self.source, start), self.read_ahead)
        reads = (functools.partial(self._read, *rows) for rows in self.row_ranges(epoch, start))
        return call_ahead(reads, self.read_ahead, READER_THREADS)

    def row_ranges(self, epoch: int = 0, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yields each batch's first row and the row after its last."""
        order = list(range(self.num_batches))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.num_batches, generator=generator).tolist()
        for index in order[start:]:
            first = index * self.batch_size
            yield first, min(first + self.batch_size, self.source.num_rows)

    def _read(self, start: int, stop: int) -> NarrowBatch:
        return self._narrow(self.source.read(start, stop))

    def _cut(self, source: StreamedRows, start: int) -> Generator[NarrowBatch, None, None]:
        """Cuts the batches from `start` on out of a stream's blocks."""
        blocks = iterate_ahead(
            source.stream(start * self.batch_size), _BLOCKS_AHEAD if self.read_ahead else 0
        )
        with contextlib.closing(blocks):
            block: ClickColumns | None = None
            for _ in range(start, self.num_batches):
                pieces: list[ClickColumns] = []
                wanted = self.batch_size
                while wanted:
                    block = block or next(blocks, None)
                    if block is None:
                        break
                    pieces.append(block[:wanted])
                    block = block[wanted:]
                    wanted -= len(pieces[-1])
                yield self._narrow(
                    pieces[0] if len(pieces) == 1 else ClickColumns.concatenate(pieces)
                )

    def _narrow(self, columns: ClickColumns) -> NarrowBatch:
        return NarrowBatch.from_columns(columns, pin_memory=self.device.type == "cuda")


def count_batches(num_rows: int, batch_size: int, drop_last: bool, subset: float | None) -> int:
    """Returns the batches of an epoch; see `BatchLoader` for the arguments."""
    whole = num_rows // batch_size if drop_last else -(-num_rows // batch_size)
    return whole if subset is None else int(whole * subset)


def check_any_batch(num_batches: int, batch_size: int, num_rows: int, subset: float | None) -> None:
    """Refuses an epoch without a batch.

    Raises:
        UserError: there is none.
    """
    if num_batches == 0:
        raise UserError(
            f"`batch_size` {batch_size} leaves no whole batch of {num_rows} "
            f"rows{'' if subset is None else f' x `dataset_subset` {subset}'}; "
            "use a smaller one"
        )


def arrive(queued: Iterator[NarrowBatch], device: torch.device) -> Iterator[Batch[Tensor]]:
    """Yields batches in the dtypes of the model, on its device."""
    return _to_cuda(queued, device) if device.type == "cuda" else map(NarrowBatch.widen, queued)


def _to_cuda(queued: Iterator[NarrowBatch], device: torch.device) -> Iterator[Batch[Tensor]]:
    """Copies each batch on a stream while the model uses another."""
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start_copy(host: NarrowBatch) -> NarrowBatch:
        with torch.cuda.stream(copies):
            return host.to(device)

    def finish(batch: NarrowBatch) -> Batch[Tensor]:
        stream = torch.cuda.current_stream(device)
        stream.wait_stream(copies)
        batch.record_stream(stream)
        return batch.widen()

    ahead: NarrowBatch | None = None
    for host in queued:
        current, ahead = ahead, start_copy(host)
        if current is not None:
            yield finish(current)
    if ahead is not None:
        yield finish(ahead)


def call_ahead(
    calls: Iterable[Callable[[], T]], depth: int, threads: int
) -> Generator[T, None, None]:
    """Yields the results of calls in their order.

    Args:
        calls: run in threads; an exception of one is raised where its result was due.
        depth: results that are made before they are asked for; 0 runs each call when asked.
        threads: that run calls at the same time.
    """
    if depth == 0:
        for call in calls:
            yield call()
        return
    pool = concurrent.futures.ThreadPoolExecutor(threads, "reader")
    queue: collections.deque[Future[T]] = collections.deque()
    try:
        for call in calls:
            queue.append(pool.submit(call))
            if len(queue) > depth:
                yield queue.popleft().result()
        while queue:
            yield queue.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def iterate_ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Yields the items, never None, of an iterator run in a thread.

    Args:
        items: closed at the end, if it is a generator.
        depth: items that are made before they are asked for; 0 makes each when asked.
    """
    ask = functools.partial(next, items, None)
    try:
        with contextlib.closing(call_ahead(itertools.repeat(ask), depth, threads=1)) as ahead:
            for item in ahead:
                if item is None:
                    return
                yield item
    finally:
        if isinstance(items, Generator):
            items.close()
