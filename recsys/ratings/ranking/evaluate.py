# SPDX-License-Identifier: Apache-2.0
"""Ranks the held-out items among all items and among sampled ones."""

import dataclasses
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.data.sequences.histories import Sequences, numbered
from recsys.errors import DivergenceError
from recsys.ratings.data.split import (
    Split,
    known_items,
    known_lengths,
    sorted_distinct,
    targets_of,
    true_items,
)
from recsys.ratings.model import RatingsModel
from recsys.ratings.scorer import Scorer, rank_among
from recsys.train.divergence import ADVICE
from recsys.train.memory import to_device
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE
from recsys.train.recipe import Machine, PrintLine

Ranks = npt.NDArray[np.int64]
Lists = npt.NDArray[np.int64]
"""[T, K] item numbers, best first; 0 where no item is left."""

Negatives = Mapping[str, npt.NDArray[np.int32]]
"""Name of a ranking -> [U, S] items to rank among, for each user."""

ScoreTargets = Callable[[npt.NDArray[np.int64]], Scorer]
"""Maps [B] int64 numbers of targets, from 0, to scores of all items after their histories."""

LEFT_OUT = -1
"""Rank of a target whose user has no negatives in that ranking."""


@dataclasses.dataclass(frozen=True, slots=True)
class SplitRanks:
    """Ranks of the true items, from 0, by kind of ranking.

    Attributes:
        ranks: for each ranking [T] int64: `full` (all items except those the user has seen),
            `full_with_seen`, and each set of negatives, in which ranks may be `LEFT_OUT`.
        lists: the first items of `full`; None if not asked for.
        users_per_s: targets ranked per second.
    """

    ranks: dict[str, Ranks]
    lists: Lists
    users_per_s: float


@torch.no_grad()
def rank_targets(
    score: ScoreTargets,
    sequences: Sequences,
    split: Split,
    negatives: Negatives,
    machine: Machine,
    *,
    batch_size: int,
    longest: int | None = None,
    list_length: int = 0,
) -> SplitRanks:
    """Ranks the targets of a split.

    Args:
        score: returns scores of all items for some targets of the split.
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        machine: device and precision of the model; each process takes every world_size-th batch,
            and every process gets all ranks.
        batch_size: B, targets per batch.
        longest: largest number of items of a history that the model reads; None for all.
        list_length: K of the lists; 0 makes no lists.

    Raises:
        DivergenceError: the model computes NaN or infinity.
    """
    device, processes = machine.device, machine.processes
    start_s = time.perf_counter()
    truth = true_items(sequences, split)
    # Targets are sorted by length, so that the attention needs little padding in a batch.
    read = known_lengths(sequences, split)
    order = np.argsort(read if longest is None else np.minimum(read, longest), kind="stable")
    owners = targets_of(sequences, split).users
    names = ["full", "full_with_seen", *negatives]
    ranks = {name: np.zeros(len(truth), np.int64) for name in names}
    lists = np.zeros((len(truth), min(list_length, sequences.num_items)), np.int64)
    stride = batch_size * processes.world_size
    nonfinite = None
    for begin in range(batch_size * processes.rank, len(order), stride):
        rows = order[begin : begin + batch_size]
        with machine.precision.autocast():
            scorer = score(rows)
        nonfinite = nonfinite or scorer.find_nonfinite(with_items=begin < stride)
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


def host_machine(print_line: PrintLine) -> Machine:
    """Returns this process on the CPU, in full precision."""
    return Machine(torch.device("cpu"), Precision(device_type="cpu"), ALONE, print_line)


def rank_on_host(
    model: RatingsModel,
    sequences: Sequences,
    split: Split,
    negatives: Negatives,
    *,
    batch_size: int = 256,
    list_length: int = 0,
) -> SplitRanks:
    """Ranks the targets of a split with a model on the CPU; see `rank_targets`."""
    return rank_targets(
        lambda rows: model.scorer(known_items(sequences, split, rows)),
        *(sequences, split, negatives, host_machine(lambda _: None)),
        batch_size=batch_size,
        list_length=list_length,
    )


def seen_pairs(
    sequences: Sequences, split: Split, rows: npt.NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Lists the distinct items that users have seen before their targets.

    Args:
        rows: [B] int64 numbers of targets of the split, from 0.
        device: device of the returned tensors.

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
