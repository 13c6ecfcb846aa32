# SPDX-License-Identifier: Apache-2.0
"""Ranks the held-out items among all items and among sampled ones."""

import dataclasses
import time

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.data.batches import known_windows, pack
from bert4rec.data.split import Split, known_lengths, sorted_distinct, targets_of, true_items
from bert4rec.data.windows import numbered
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import ItemScorer, rank_among
from bert4rec.nn.layout import SequenceLayout
from bert4rec.rules import mask_item, max_history_length
from recsys.data.sequences.histories import Sequences
from recsys.errors import DivergenceError
from recsys.train.divergence import ADVICE, find_nonfinite
from recsys.train.memory import to_device
from recsys.train.recipe import Machine

Ranks = npt.NDArray[np.int64]
Lists = npt.NDArray[np.int64]
"""[T, K] item numbers, best first; 0 where no item is left."""

LEFT_OUT = -1
"""Rank of a target that a ranking leaves out, for its user has no negatives."""


@dataclasses.dataclass(frozen=True, slots=True)
class SplitRanks:
    """Ranks of the true items, from 0, by kind of ranking.

    Attributes:
        ranks: [T] int64 each for `full` (all items but those the user has seen),
            `full_with_seen`, and each set of negatives, where some may be `LEFT_OUT`.
        lists: the first items of `full`, where asked for.
        users_per_s: targets ranked per second.
    """

    ranks: dict[str, Ranks]
    lists: Lists
    users_per_s: float


@torch.no_grad()
def rank_split(
    model: Bert4Rec,
    sequences: Sequences,
    split: Split,
    negatives: dict[str, npt.NDArray[np.int32]],
    machine: Machine,
    *,
    batch_size: int,
    causal: bool,
    list_length: int = 0,
) -> SplitRanks:
    """Ranks the targets of a split.

    Args:
        model: the network; left in evaluation mode.
        sequences: histories of all users.
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        machine: device and precision of the model; each of the processes takes every world_size-th
            batch, and all get all ranks.
        batch_size: B.
        causal: predict the next item at the last one, without a mask item.
        list_length: K of the lists; 0 makes none.

    Raises:
        DivergenceError: the model computes NaN or infinity.
    """
    model.eval()
    device, processes = machine.device, machine.processes
    start_s = time.perf_counter()
    truth = true_items(sequences, split)
    # Sorted by length, the targets of a batch need little padding in the attention.
    order = np.argsort(np.minimum(known_lengths(sequences, split), model.max_len), kind="stable")
    owners = targets_of(sequences, split).users
    names = ["full", "full_with_seen", *negatives]
    ranks = {name: np.zeros(len(truth), np.int64) for name in names}
    lists = np.zeros((len(truth), min(list_length, sequences.num_items)), np.int64)
    stride = batch_size * processes.world_size
    nonfinite = None
    for begin in range(batch_size * processes.rank, len(order), stride):
        rows = order[begin : begin + batch_size]
        with machine.precision.autocast():
            packed = pack_known(model, sequences, split, rows, causal, device)
            scorer = ItemScorer.of_histories(model, *packed, causal=causal)
        computed = {"the vector of a history": scorer.vectors}
        if begin < stride:
            computed |= {"the vector of an item": scorer.items, "the bias of an item": scorer.bias}
        nonfinite = nonfinite or find_nonfinite(computed)
        true = to_device(torch.from_numpy(truth[rows].astype(np.int64)), device)
        seen = seen_pairs(sequences, split, rows, device)
        with_seen, full = scorer.ranks(true, *seen)
        ranks["full"][rows] = full.cpu().numpy()
        ranks["full_with_seen"][rows] = with_seen.cpu().numpy()
        if list_length:
            best, of_best = scorer.top(lists.shape[1], *seen)
            lists[rows] = torch.where(of_best.isfinite(), best, 0).cpu().numpy()
        for name, items in negatives.items():
            drawn = items[owners[rows]].astype(np.int64)
            others = to_device(torch.from_numpy(drawn.clip(min=1)), device)
            scores = scorer.scores_of(torch.cat([true.unsqueeze(1), others], dim=1))
            among = rank_among(scores).cpu().numpy()
            ranks[name][rows] = np.where(drawn[:, 0] > 0, among, LEFT_OUT)
    if processes.any(nonfinite is not None):
        raise DivergenceError(
            f"{nonfinite or 'a vector'} is NaN or infinite, so no item can be ranked: the "
            f"parameters have diverged. {ADVICE}"
        )
    ranks = {name: processes.sum_integers(of_rank) for name, of_rank in ranks.items()}
    lists = processes.sum_integers(lists)
    return SplitRanks(ranks, lists, len(order) / (time.perf_counter() - start_s))


def pack_known(
    model: Bert4Rec,
    sequences: Sequences,
    split: Split,
    rows: npt.NDArray[np.int64],
    causal: bool,
    device: torch.device,
) -> tuple[Tensor, SequenceLayout]:
    """Packs the items before targets, as a model reads them; see `ItemScorer.of_histories`.

    Args:
        model: the network.
        sequences: histories of all users.
        split: split of the targets.
        rows: [B] int64 numbers of targets of the split, from 0.
        causal: predict the next item at the last one, without a mask item.
        device: receives the tensors.
    """
    windows = known_windows(sequences, split, rows, max_history_length(model.max_len, causal))
    append = None if causal else mask_item(sequences.num_items)
    return pack(sequences, windows, device, append)


def seen_pairs(
    sequences: Sequences, split: Split, rows: npt.NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Lists the distinct items that users have seen before targets.

    Args:
        sequences: histories of all users.
        split: split of the targets.
        rows: [B] int64 numbers of targets of the split, from 0.
        device: receives the tensors.

    Returns:
        ([P] int64 index into `rows`, [P] int64 item), without the true items.
    """
    targets = targets_of(sequences, split)
    users, known = targets.users[rows], targets.known[rows]
    row = np.repeat(np.arange(len(users)), known)
    index = np.repeat(sequences.offsets[users], known) + numbered(known)
    items = sequences.items[index].astype(np.int64)
    base = sequences.num_items + 1
    pairs = sorted_distinct(row * base + items)
    pairs = np.setdiff1d(
        pairs, np.arange(len(users)) * base + true_items(sequences, split)[rows], True
    )
    rows_of_pairs, items_of_pairs = map(torch.from_numpy, np.divmod(pairs, base))
    return to_device(rows_of_pairs, device), to_device(items_of_pairs, device)
