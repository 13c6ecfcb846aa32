# SPDX-License-Identifier: Apache-2.0
"""Ranks of the held-out items: among all items and among sampled ones, from one pass.

Letters: U users, B users of a batch, S negatives.
"""

import dataclasses
import time

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.data.batches import known_windows, pack
from bert4rec.data.split import Split, known_lengths, true_items
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import Queries, rank_among
from bert4rec.rules import mask_item, room_for_items
from recsys.data.sequences import Sequences
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE, Processes

Ranks = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class SplitRanks:
    """Places of the true items, from 0, by kind of ranking.

    Attributes:
        ranks: [U] each: `full` (all items but those the user has seen), `full_with_seen`,
            and one per set of negatives.
        users_per_s: speed.
    """

    ranks: dict[str, Ranks]
    users_per_s: float


@torch.no_grad()
def rank_split(
    model: Bert4Rec,
    sequences: Sequences,
    split: Split,
    negatives: dict[str, npt.NDArray[np.int32]],
    *,
    batch_size: int,
    causal: bool,
    precision: Precision,
    device: torch.device,
    processes: Processes = ALONE,
) -> SplitRanks:
    """Ranks the item that a split asks of every user.

    Args:
        model: the network; left in evaluation mode.
        sequences: of all users.
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        batch_size: B.
        causal: the model predicts from the last item, without a mask behind it.
        precision: of the forward pass.
        device: of the model.
        processes: each takes every world_size-th batch, and all get all ranks.
    """
    model.eval()
    start_s = time.perf_counter()
    truth = true_items(sequences, split)
    # Users of like length together: little padding in the attention.
    order = np.argsort(np.minimum(known_lengths(sequences, split), model.max_len), kind="stable")
    names = ["full", "full_with_seen", *negatives]
    found = {name: np.zeros(sequences.num_users, np.int64) for name in names}
    stride = batch_size * processes.world_size
    for begin in range(batch_size * processes.rank, len(order), stride):
        users = order[begin : begin + batch_size]
        with precision.autocast():
            queries = ask(model, sequences, split, users, causal=causal, device=device)
        asked = torch.from_numpy(truth[users].astype(np.int64)).to(device)
        with_seen, full = queries.ranks(asked, *seen_pairs(sequences, split, users, device))
        found["full"][users] = full.cpu().numpy()
        found["full_with_seen"][users] = with_seen.cpu().numpy()
        for name, items in negatives.items():
            others = torch.from_numpy(items[users].astype(np.int64)).to(device)
            scores = queries.scores_of(torch.cat([asked.unsqueeze(1), others], dim=1))
            found[name][users] = rank_among(scores).cpu().numpy()
    found = {name: processes.sum_integers(ranks) for name, ranks in found.items()}
    return SplitRanks(found, len(order) / (time.perf_counter() - start_s))


def ask(
    model: Bert4Rec,
    sequences: Sequences,
    split: Split,
    users: npt.NDArray[np.int64],
    *,
    causal: bool,
    device: torch.device,
) -> Queries:
    """Asks a model for the next item of some users, given what a split lets it see."""
    windows = known_windows(sequences, split, users, room_for_items(model.max_len, causal))
    append = None if causal else mask_item(sequences.num_items)
    items, layout = pack(sequences, windows, device, append)
    return Queries.of_histories(model, items, layout, causal=causal)


def seen_pairs(
    sequences: Sequences, split: Split, users: npt.NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns what users have met before the item a split asks for, as pairs.

    Args:
        sequences: of all users.
        split: of the question.
        users: [B].
        device: of the result.

    Returns:
        ([P] int64 index into `users`, [P] int64 item), no pair twice, none with the true item.
    """
    known = known_lengths(sequences, split)[users]
    row = np.repeat(np.arange(len(users)), known)
    place = np.arange(len(row)) - np.repeat(known.cumsum() - known, known)
    items = sequences.items[np.repeat(sequences.offsets[users], known) + place].astype(np.int64)
    base = sequences.num_items + 1
    pairs = np.unique(row * base + items)
    pairs = np.setdiff1d(
        pairs, np.arange(len(users)) * base + true_items(sequences, split)[users], True
    )
    return (
        torch.from_numpy(pairs // base).to(device),
        torch.from_numpy(pairs % base).to(device),
    )
