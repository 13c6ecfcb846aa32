# SPDX-License-Identifier: Apache-2.0
"""Batches of packed sequences, reproducible by seed and after resuming."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.config import Bert4RecConfig
from bert4rec.data.masking import MaskCounts, draw_counts
from bert4rec.data.rounding import add_tokens
from bert4rec.data.windows import Windows, make_windows
from bert4rec.nn.layout import SequenceLayout
from recsys.ahead import call_ahead
from recsys.data.sequences.histories import Sequences, numbered
from recsys.errors import UserError
from recsys.ratings.data.split import Split, targets_of, training_lengths
from recsys.train.memory import HostBatch, copy_ahead, to_device
from recsys.train.processes import ALONE, Processes

_HOST = torch.device("cpu")

_GROUPS_AHEAD = 2
"""Groups that each thread makes ahead of the step."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainBatch(HostBatch):
    """Sequences to train on, with the host's random draws.

    Attributes:
        items: [N] int64 packed item numbers; 0 for tokens that `rounding` added.
        layout: offsets of the sequences in `items`.
        causal: predict the item after each token, instead of masked items.
        mask_counts: tokens to mask in each sequence.
        seed: seeds the device's random draws for this batch.
        num_sequences: sequences, without added ones.
        num_tokens: tokens that the model reads, without added ones.
        num_targets: tokens to predict, without added ones.
    """

    items: Tensor
    layout: SequenceLayout
    causal: bool
    mask_counts: MaskCounts
    seed: int
    num_sequences: int
    num_tokens: int
    num_targets: int

    def __len__(self) -> int:
        return self.num_sequences

    @property
    def is_rounded(self) -> bool:
        """Whether tokens were added, which are in sequences of their own."""
        return self.layout.batch_size > self.num_sequences

    @property
    def sizes(self) -> tuple[int | bool, ...]:
        """All that decides the shapes of a step on the batch."""
        layout, counts = self.layout, self.mask_counts
        shape = (layout.batch_size, layout.num_tokens, layout.max_length)
        return *shape, counts.total, counts.largest, self.causal

    def map(self, change: Callable[[Tensor], Tensor]) -> "TrainBatch":
        """Returns the batch with each tensor changed."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class BatchGroup(HostBatch):
    """The batches of one step."""

    batches: tuple[TrainBatch, ...]

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def map(self, change: Callable[[Tensor], Tensor]) -> "BatchGroup":
        """Returns the group with each tensor changed."""
        return BatchGroup(tuple(batch.map(change) for batch in self.batches))


class TrainBatches:
    """The batches of each epoch that this process trains on, in groups of one step.

    Args:
        config: settings of the run; `hybrid` alternates cloze and causal batches, and a causal
            window has one item more than `max_len`, its last target.
        sequences: histories of all users.
        device: device of the batches; batches for a GPU are copied from pinned memory during the
            step before.
        processes: each takes every world_size-th group.
        rounds: add tokens up to few different sizes; None does so for a GPU, see `rounding`.

    Attributes:
        batch_size: sequences of a group; the last group of an epoch may be smaller.
        num_batches: groups of an epoch.
        least_items: fewest items to train on with which a user has a window.
    """

    def __init__(
        self,
        config: Bert4RecConfig,
        sequences: Sequences,
        device: torch.device = _HOST,
        processes: Processes = ALONE,
        rounds: bool | None = None,
    ) -> None:
        self._config = config
        self._sequences = sequences
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._rounds = self._is_gpu if rounds is None else rounds
        workers = config.data.num_workers
        self._num_workers = int(self._is_gpu) if workers is None else workers
        self._steps = config.optimizer.accumulation_steps
        self._first = processes.rank * self._steps
        self._stride = processes.world_size * self._steps
        self._known = training_lengths(sequences)
        generator = np.random.default_rng(0)
        self.least_items = next(
            n for n in itertools.count(1) if len(self._windows(np.array([n]), generator))
        )
        count = len(self._windows(self._known, generator))
        if not count:
            raise UserError(
                f"no user has {self.least_items} items to train on, apart from those held out, but "
                f"`objective` {config.objective.objective} with `windows` {config.data.windows} "
                "needs them: choose other values, or prepare a dataset with longer histories",
                settings=("objective", "windows"),
            )
        self.batch_size = config.data.train_batch_size * self._steps
        self.num_batches = -(-count // (config.data.train_batch_size * self._stride))

    def _windows(self, known: npt.NDArray[np.int64], generator: np.random.Generator) -> Windows:
        data, objective = self._config.data, self._config.objective.objective
        longest = self._config.model.max_len + (objective != "cloze")
        windows = make_windows(data.windows, known, longest, generator, data.dupe_factor)
        if objective == "causal":  # a single item has no next one to predict
            windows = windows.take(np.flatnonzero(windows.lengths > 1))
        return windows

    def batches(self, epoch: int, start: int) -> Iterator[BatchGroup]:
        """Yields the groups of an epoch.

        Args:
            epoch: number of the epoch: windows, order and masks are drawn anew for each.
            start: number of the first group.
        """
        ahead = _GROUPS_AHEAD * self._num_workers
        calls = self._calls(epoch, start)
        with contextlib.closing(call_ahead(calls, ahead, self._num_workers)) as loaded:
            yield from copy_ahead(loaded, self._device) if self._is_gpu else loaded

    def _calls(self, epoch: int, start: int) -> Iterator[Callable[[], BatchGroup]]:
        """Yields a function for each group that makes it, on any thread."""
        generator = np.random.default_rng((self._config.run.seed, epoch))
        windows = self._windows(self._known, generator)
        order = self._order(windows, generator)
        for number in range(start, self.num_batches):
            first = number * self._stride + self._first
            mine = range(first, first + self._steps)
            yield functools.partial(self._load_group, windows, order, epoch, mine)

    def _order(
        self, windows: Windows, generator: np.random.Generator
    ) -> list[npt.NDArray[np.int64]]:
        """Returns the windows of each batch.

        A batch is drawn at random, then sorted by length. This saves padding where attention works
        through a few sequences at a time, and does not change what is learnt.
        """
        size = self._config.data.train_batch_size
        shuffled = generator.permutation(len(windows))
        number = np.arange(len(windows)) // size
        shuffled = shuffled[np.lexsort((windows.lengths[shuffled], number))]
        return np.split(shuffled, range(size, len(windows), size))

    def _load_group(
        self, windows: Windows, order: list[npt.NDArray[np.int64]], epoch: int, numbers: range
    ) -> BatchGroup:
        # Ranks beyond the end of the epoch repeat its first batches, so that all take equally many
        # steps.
        chosen = [windows.take(order[number % len(order)]) for number in numbers]
        return BatchGroup(tuple(map(self._load, chosen, itertools.repeat(epoch), numbers)))

    def _load(self, windows: Windows, epoch: int, number: int) -> TrainBatch:
        objective = self._config.objective
        generator = np.random.default_rng((self._config.run.seed, epoch, number))
        takes_turns = objective.objective == "hybrid" and number % 2 == 1
        causal = objective.objective == "causal" or (takes_turns and int(windows.lengths.max()) > 1)
        if not causal:
            windows = windows.ends(self._config.model.max_len)
        counts = draw_counts(windows.lengths, objective, generator)
        items, layout = pack(self._sequences, windows, _HOST)
        seed = int(generator.integers(2**63))
        tokens = layout.num_tokens - causal * layout.batch_size
        real = (len(windows), tokens, tokens if causal else counts.total)
        if self._rounds:
            items, layout, counts = add_tokens(
                *(items, layout, counts, self._config.model.max_len), causal=causal
            )
        batch = TrainBatch(items, layout, causal, counts, seed, *real)
        return batch.pinned() if self._is_gpu else batch


def pack(
    sequences: Sequences, windows: Windows, device: torch.device, append: int | None = None
) -> tuple[Tensor, SequenceLayout]:
    """Copies windows of the sequences into one packed tensor.

    Args:
        sequences: histories of all users.
        windows: B windows of them.
        device: device of the result.
        append: item to append to each window; None appends nothing.

    Returns:
        ([N] int64 items, offsets of the windows in them).
    """
    lengths = windows.lengths + (append is not None)
    first = sequences.offsets[windows.users] + windows.starts
    position = numbered(lengths)
    if append is None:
        items = sequences.items[np.repeat(first, lengths) + position]
    else:
        is_end = position == np.repeat(lengths - 1, lengths)
        source = np.repeat(first, lengths) + position - is_end
        items = np.where(is_end, append, sequences.items[np.maximum(source, 0)])
    packed = to_device(torch.from_numpy(items.astype(np.int64)), device)
    layout = SequenceLayout.of_lengths(
        to_device(torch.from_numpy(lengths), device),
        int(lengths.max(initial=0)),
        len(position),
    )
    return packed, layout


def known_windows(
    sequences: Sequences, split: Split, rows: npt.NDArray[np.int64], max_len: int
) -> Windows:
    """Returns the last `max_len` items before targets, as windows.

    Args:
        sequences: histories of all users.
        split: split of the targets.
        rows: [B] int64 indices of targets of the split.
        max_len: maximum number of items of a window.
    """
    targets = targets_of(sequences, split)
    users, known = targets.users[rows], targets.known[rows]
    return Windows(users, np.zeros_like(known), known).ends(max_len)
