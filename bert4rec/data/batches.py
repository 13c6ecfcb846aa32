# SPDX-License-Identifier: Apache-2.0
"""Batches of packed sequences, reproducible by seed and after resuming."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.config import Bert4RecConfig, Objective, WindowKind
from bert4rec.data.masking import MaskCounts, MaskingRule, draw_counts
from bert4rec.data.split import Split, targets_of, training_lengths
from bert4rec.data.windows import Windows, make_windows
from bert4rec.nn.layout import SequenceLayout
from recsys.ahead import call_ahead
from recsys.data.sequences import Sequences
from recsys.errors import UserError
from recsys.train.memory import copy_ahead, to_device
from recsys.train.processes import ALONE, Processes

_HOST = torch.device("cpu")

_GROUPS_AHEAD = 2
"""Groups that each thread makes ahead of the step."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainBatch:
    """Sequences to train on, with the host's random draws.

    Attributes:
        items: [N] int64 packed item numbers.
        layout: offsets of the sequences in `items`.
        causal: predict the item after each token, instead of masked items.
        mask_counts: tokens to mask in each sequence.
        seed: seeds the device's random draws for this batch.
    """

    items: Tensor
    layout: SequenceLayout
    causal: bool
    mask_counts: MaskCounts
    seed: int

    def __len__(self) -> int:
        return self.layout.batch_size

    @property
    def num_targets(self) -> int:
        """Tokens to predict; the host knows it without waiting for the device."""
        if self.causal:
            return self.layout.num_tokens - self.layout.batch_size
        return self.mask_counts.total

    def pinned(self) -> "TrainBatch":
        """Copies the batch into pinned memory."""
        return self._map(Tensor.pin_memory)

    def to(self, device: torch.device) -> "TrainBatch":
        """Queues the copy to a device."""
        return self._map(lambda t: t.to(device, non_blocking=True))

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the allocator that `stream` reads the tensors."""
        counts = self.mask_counts
        for tensor in (self.items, self.layout.offsets, counts.per_sequence, counts.last_only):
            tensor.record_stream(stream)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "TrainBatch":
        counts = self.mask_counts
        return dataclasses.replace(
            self,
            items=change(self.items),
            layout=self.layout.with_offsets(change(self.layout.offsets)),
            mask_counts=dataclasses.replace(
                counts,
                per_sequence=change(counts.per_sequence),
                last_only=change(counts.last_only),
            ),
        )


class TrainBatches:
    """The training batches of each epoch.

    Args:
        sequences: histories of all users.
        kind: choice of windows; see `make_windows`.
        max_len: tokens of the longest sequence; a causal window has one more item, its last target.
        dupe_factor: times each window is seen in an epoch.
        batch_size: B; the last batch of an epoch may be smaller.
        objective: training objective; `hybrid` alternates cloze and causal batches.
        masking: probabilities of masking, for the cloze objective.
        seed: seeds all random draws.
        pin_memory: make the batches in memory from which a GPU copies without a wait.
        rank: number of this process; it takes every world_size-th batch.
        world_size: number of processes.

    Attributes:
        least_items: items to train on below which a user has no window.
    """

    def __init__(
        self,
        *,
        sequences: Sequences,
        kind: WindowKind,
        max_len: int,
        dupe_factor: int,
        batch_size: int,
        objective: Objective,
        masking: MaskingRule,
        seed: int,
        pin_memory: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._sequences = sequences
        self._kind = kind
        self._max_len = max_len
        self._dupe_factor = dupe_factor
        self.batch_size = batch_size
        self._objective = objective
        self._masking = masking
        self._seed = seed
        self._pin_memory = pin_memory
        self._rank = rank
        self._world_size = world_size
        self._known = training_lengths(sequences)
        generator = np.random.default_rng(0)
        self.least_items = next(
            n for n in itertools.count(1) if len(self._windows(np.array([n]), generator))
        )
        count = len(self._windows(self._known, generator))
        if not count:
            raise UserError(
                f"no user has {self.least_items} items to train on, besides those that are held "
                f"out, as `objective` {objective} with `windows` {kind} needs: choose others, or "
                "prepare a dataset of longer histories"
            )
        self.num_batches = -(-count // (batch_size * world_size))
        self._count = count

    def _windows(self, known: npt.NDArray[np.int64], generator: np.random.Generator) -> Windows:
        longest = self._max_len + (self._objective != "cloze")
        windows = make_windows(self._kind, known, longest, generator, self._dupe_factor)
        if self._objective == "causal":  # a single item has no next one to predict
            windows = windows.take(np.flatnonzero(windows.lengths > 1))
        return windows

    def batches(self, epoch: int, start: int) -> Iterator[TrainBatch]:
        """Yields the batches of an epoch from `start` on, on the host."""
        return (load() for load in self.loads(epoch, start))

    def loads(self, epoch: int, start: int) -> Iterator[Callable[[], TrainBatch]]:
        """Yields a call per batch of an epoch, for any thread.

        Args:
            epoch: number of the epoch: windows, order and masks are drawn anew for each.
            start: number of the first batch.
        """
        generator = np.random.default_rng((self._seed, epoch))
        windows = self._windows(self._known, generator)
        order = self._order(windows, generator)
        for number in range(start, self.num_batches):
            mine = number * self._world_size + self._rank
            # Ranks beyond the end of the epoch repeat its first batches: all take as many steps.
            chosen = order[mine % len(order)]
            yield functools.partial(self._load, windows, chosen, epoch, mine)

    def _order(
        self, windows: Windows, generator: np.random.Generator
    ) -> list[npt.NDArray[np.int64]]:
        """Returns the windows of each batch.

        A batch is drawn at random, then sorted by length: attention that goes through it a few
        sequences at a time pads little, and what is learnt does not change.
        """
        shuffled = generator.permutation(len(windows))
        number = np.arange(len(windows)) // self.batch_size
        shuffled = shuffled[np.lexsort((windows.lengths[shuffled], number))]
        return np.split(shuffled, range(self.batch_size, len(windows), self.batch_size))

    def _load(
        self, windows: Windows, chosen: npt.NDArray[np.int64], epoch: int, number: int
    ) -> TrainBatch:
        windows = windows.take(chosen)
        generator = np.random.default_rng((self._seed, epoch, number))
        takes_turns = self._objective == "hybrid" and number % 2 == 1
        causal = self._objective == "causal" or (takes_turns and int(windows.lengths.max()) > 1)
        if not causal:
            windows = windows.ends(self._max_len)
        counts = draw_counts(windows.lengths, self._masking, generator)
        items, layout = pack(self._sequences, windows, _HOST)
        seed = int(generator.integers(2**63))
        batch = TrainBatch(items, layout, causal, counts, seed)
        return batch.pinned() if self._pin_memory else batch


@dataclasses.dataclass(frozen=True, slots=True)
class BatchGroup:
    """The batches of one step."""

    batches: tuple[TrainBatch, ...]

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def to(self, device: torch.device) -> "BatchGroup":
        """Queues the copy to a device."""
        return BatchGroup(tuple(batch.to(device) for batch in self.batches))

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the allocator that `stream` reads the tensors."""
        for batch in self.batches:
            batch.record_stream(stream)


class AccumulatedBatches:
    """Groups of batches, to accumulate the gradients of several in one step.

    Args:
        sources: batches that processes 0, 1, ... would train on; at least one.
        device: receives the batches; those of a GPU are copied during the step before.
        num_workers: threads that make the next groups during a step; 0 makes each on demand.
    """

    def __init__(
        self, sources: Sequence[TrainBatches], device: torch.device, num_workers: int = 0
    ) -> None:
        self._sources = sources
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._num_workers = num_workers
        self.batch_size = sum(source.batch_size for source in sources)
        self.num_batches = sources[0].num_batches
        self.least_items = sources[0].least_items

    def batches(self, epoch: int, start: int) -> Iterator[BatchGroup]:
        """Yields the groups of an epoch from `start` on."""
        streams = [source.loads(epoch, start) for source in self._sources]
        groups = (functools.partial(_load_group, loads) for loads in zip(*streams, strict=True))
        ahead = _GROUPS_AHEAD * self._num_workers
        with contextlib.closing(call_ahead(groups, ahead, self._num_workers)) as loaded:
            yield from copy_ahead(loaded, self._device) if self._is_gpu else loaded


def _load_group(loads: Iterable[Callable[[], TrainBatch]]) -> BatchGroup:
    return BatchGroup(tuple(load() for load in loads))


def training_batches(
    config: Bert4RecConfig,
    sequences: Sequences,
    device: torch.device,
    processes: Processes = ALONE,
) -> AccumulatedBatches:
    """Returns this process's training batches."""
    data, steps = config.data, config.optimizer.accumulation_steps
    sources = [
        TrainBatches(
            sequences=sequences,
            kind=data.windows,
            max_len=config.model.max_len,
            dupe_factor=data.dupe_factor,
            batch_size=data.train_batch_size,
            objective=config.objective.objective,
            masking=MaskingRule.of(config.objective),
            seed=config.run.seed,
            pin_memory=device.type == "cuda",
            rank=processes.rank * steps + number,
            world_size=processes.world_size * steps,
        )
        for number in range(steps)
    ]
    workers = int(device.type == "cuda") if data.num_workers is None else data.num_workers
    return AccumulatedBatches(sources, device, workers)


def pack(
    sequences: Sequences, windows: Windows, device: torch.device, append: int | None = None
) -> tuple[Tensor, SequenceLayout]:
    """Copies windows of the sequences into one packed tensor.

    Args:
        sequences: histories of all users.
        windows: B windows of them.
        device: receives the tensor.
        append: item to append to each window.

    Returns:
        ([N] int64 items, offsets of the windows in them).
    """
    lengths = windows.lengths + (append is not None)
    ends = lengths.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    first = sequences.offsets[windows.users] + windows.starts
    position = np.arange(total) - np.repeat(ends - lengths, lengths)
    if append is None:
        items = sequences.items[np.repeat(first, lengths) + position]
    else:
        is_end = position == np.repeat(lengths - 1, lengths)
        source = np.repeat(first, lengths) + position - is_end
        items = np.where(is_end, append, sequences.items[np.maximum(source, 0)])
    packed = to_device(torch.from_numpy(items.astype(np.int64)), device)
    layout = SequenceLayout.of_lengths(
        to_device(torch.from_numpy(lengths), device),
        int(lengths.max()) if len(lengths) else 0,
        total,
    )
    return packed, layout


def known_windows(
    sequences: Sequences, split: Split, rows: npt.NDArray[np.int64], max_len: int
) -> Windows:
    """Returns the last `max_len` items before targets, as windows.

    Args:
        sequences: histories of all users.
        split: split of the targets.
        rows: [B] numbers of targets of the split, from 0.
        max_len: most items of a window.
    """
    targets = targets_of(sequences, split)
    users, known = targets.users[rows], targets.known[rows]
    return Windows(users, np.zeros_like(known), known).ends(max_len)
