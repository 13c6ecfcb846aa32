# SPDX-License-Identifier: Apache-2.0
"""Loads the batches of a split in threads, ahead of the model."""

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Iterator
from fractions import Fraction
from typing import Any

import torch

from dlrm.data.batch import Batch, NarrowBatch, mixed_seed
from dlrm.data.pinned import PinnedBuffers, PinnedRing
from dlrm.data.sources import RowsReadInto, StreamedRows
from recsys.ahead import call_ahead, iterate_ahead
from recsys.data.click_columns import ClickColumns
from recsys.data.row_reader import RowReader
from recsys.errors import UserError
from recsys.train.memory import copy_ahead

READER_THREADS = 2
"""Threads that read batches: one waits for the disk while the other decodes."""

_BUFFERS_IN_USE = 4
"""Pinned buffers in addition to those read ahead: in the loop, being copied, next, one to spare."""

_BLOCKS_AHEAD = 1
"""Blocks of a stream to decode ahead of the one that is being cut into batches."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BatchLoader:
    """Loads the batches of a split, by row number or as a stream.

    A source that can stream is streamed, unless the batches are shuffled.

    Attributes:
        source: reader of the split.
        batch_size: samples per batch.
        device: device of the batches.
        drop_last: whether to leave out the last, shorter batch (training) or yield it (evaluation).
        shuffle: whether to permute the batches in each epoch; rows within a batch keep their order.
        seed: seed of the permutations.
        subset: fraction of the batches to use, from the front, in (0, 1]; None uses all.
        read_ahead: number of batches to read ahead of the model; 0 reads on demand.
    """

    source: RowReader
    batch_size: int
    device: torch.device
    drop_last: bool
    shuffle: bool = False
    seed: int = 0
    subset: float | None = None
    read_ahead: int = 4
    _rings: list[PinnedRing] = dataclasses.field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuses a split that is too small for a batch."""
        check_any_batch(self.num_batches, self.batch_size, self.source.num_rows, self.subset)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return count_batches(self.source.num_rows, self.batch_size, self.drop_last, self.subset)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch[Any]]:
        """Yields an epoch's batches from number `start` on, in a fixed order."""
        return to_device(self.narrow_batches(epoch, start), self.device)

    def narrow_batches(self, epoch: int = 0, start: int = 0) -> Iterator[NarrowBatch]:
        """Yields the same batches on the host, in storage dtypes.

        Batches for a GPU are in pinned buffers, which are reused once they are copied.
        """
        are_of_one_size = not self.source.spec.lists
        if self.device.type == "cuda" and are_of_one_size:
            return self._pinned_batches(epoch, start)
        if (stream := self._stream) is not None:
            cut = (NarrowBatch.from_columns(columns) for columns in self._cut(stream, start))
            return iterate_ahead(cut, self.read_ahead)
        reads = (functools.partial(self._read, *rows) for rows in self.row_ranges(epoch, start))
        return call_ahead(reads, self.read_ahead, READER_THREADS)

    @property
    def _stream(self) -> StreamedRows | None:
        """The source if its rows are read as a stream; otherwise None."""
        return self.source if isinstance(self.source, StreamedRows) and not self.shuffle else None

    def row_ranges(self, epoch: int = 0, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yields (first row, row after the last) of each batch."""
        order = list(range(self.num_batches))
        if self.shuffle:
            generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
            order = torch.randperm(self.num_batches, generator=generator).tolist()
        for index in order[start:]:
            first = index * self.batch_size
            yield first, min(first + self.batch_size, self.source.num_rows)

    def _read(self, start: int, stop: int) -> NarrowBatch:
        return NarrowBatch.from_columns(self.source.read(start, stop))

    def _pinned_batches(self, epoch: int, start: int) -> Generator[NarrowBatch, None, None]:
        """Yields batches in the buffers of a ring."""
        ring = self._rings.pop() if self._rings else self._make_ring()
        try:
            with contextlib.ExitStack() as stack:
                if (stream := self._stream) is not None:
                    cut = stack.enter_context(contextlib.closing(self._cut(stream, start)))
                    numbers, threads = range(start, self.num_batches), 1
                    turns = zip(numbers, ring.turns(), strict=False)
                    fills = (functools.partial(_copy_next, cut, buffers) for _, buffers in turns)
                else:
                    threads = READER_THREADS
                    in_turn = zip(self.row_ranges(epoch, start), ring.turns(), strict=False)
                    fills = (
                        functools.partial(self._read_into, buffers, *rows)
                        for rows, buffers in in_turn
                    )
                filled = call_ahead(fills, self.read_ahead, threads)
                yield from stack.enter_context(contextlib.closing(filled))
        finally:
            self._rings.append(ring)

    def _make_ring(self) -> PinnedRing:
        stream = self._stream
        like = self.source.read(0, 1) if stream is None else next(stream.stream(0))
        rows = min(self.batch_size, self.source.num_rows)
        return PinnedRing(like, rows, self.read_ahead + _BUFFERS_IN_USE)

    def _read_into(self, buffers: PinnedBuffers, start: int, stop: int) -> NarrowBatch:
        columns = buffers.columns(stop - start)
        if isinstance(self.source, RowsReadInto):
            self.source.read_into(start, columns)
        else:
            columns.fill(self.source.read(start, stop))
        return buffers.batch(stop - start)

    def _cut(self, source: StreamedRows, start: int) -> Generator[ClickColumns, None, None]:
        """Cuts a stream's blocks into batches, starting at batch number `start`."""
        blocks = iterate_ahead(
            source.stream(start * self.batch_size), _BLOCKS_AHEAD if self.read_ahead else 0
        )
        with contextlib.closing(blocks):
            block: ClickColumns | None = None
            for _ in range(start, self.num_batches):
                slices: list[ClickColumns] = []
                missing = self.batch_size
                while missing:
                    block = block or next(blocks, None)
                    if block is None:
                        break
                    slices.append(block[:missing])
                    block = block[missing:]
                    missing -= len(slices[-1])
                yield slices[0] if len(slices) == 1 else ClickColumns.concatenate(slices)


def _copy_next(cut: Iterator[ClickColumns], buffers: PinnedBuffers) -> NarrowBatch:
    columns = next(cut)
    buffers.columns(len(columns)).fill(columns)
    return buffers.batch(len(columns))


def count_batches(num_rows: int, batch_size: int, drop_last: bool, subset: float | None) -> int:
    """Returns the number of batches in an epoch; for the arguments see `BatchLoader`."""
    whole = num_rows // batch_size if drop_last else -(-num_rows // batch_size)
    return whole if subset is None else int(whole * Fraction(str(subset)))  # .29 of 100 is 29


class NoBatchError(UserError):
    """A split has fewer rows than a batch."""


def check_any_batch(num_batches: int, batch_size: int, num_rows: int, subset: float | None) -> None:
    """Refuses an epoch without batches.

    Raises:
        UserError: the epoch has no batch.
    """
    if num_rows == 0:
        raise UserError(
            "the split to read has no rows: choose another with `eval_split`, or prepare the "
            "dataset again with rows for it",
            setting="eval_split",
        )
    if num_batches == 0:
        raise NoBatchError(
            f"`batch_size` {batch_size} leaves no whole batch of {num_rows} "
            f"rows{'' if subset is None else f' x `dataset_subset` {subset}'}; "
            "use a smaller batch size",
            settings=("batch_size", "dataset_subset"),
        )


def to_device(host: Iterator[NarrowBatch], device: torch.device) -> Iterator[Batch[Any]]:
    """Copies batches to the device and converts them to the model's dtypes."""
    on_device = copy_ahead(host, device) if device.type == "cuda" else host
    return (batch.widen() for batch in on_device)
