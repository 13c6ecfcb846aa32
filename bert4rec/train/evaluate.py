# SPDX-License-Identifier: Apache-2.0
"""Ranks the held-out items with a BERT4Rec."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.data.batches import known_windows, pack
from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import ItemScorer
from bert4rec.nn.layout import SequenceLayout
from bert4rec.rules import mask_item, max_history_length
from recsys.data.sequences.histories import Sequences
from recsys.ratings.data.split import Split
from recsys.ratings.ranking.evaluate import SplitRanks, rank_targets
from recsys.train.recipe import Machine


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
    """Ranks the targets of a split; see `rank_targets`.

    Args:
        model: the network; left in evaluation mode.
        sequences: histories of all users.
        split: `validation` or `test`.
        negatives: name of a ranking -> [U, S] items.
        machine: device, precision and processes of the model.
        batch_size: B.
        causal: predict from the last item, without a mask item.
        list_length: K of the lists; 0 makes no lists.

    Raises:
        DivergenceError: the model computes NaN or infinity.
    """
    model.eval()

    def score(rows: npt.NDArray[np.int64]) -> ItemScorer:
        packed = pack_known(model, sequences, split, rows, causal, machine.device)
        return ItemScorer.of_histories(model, *packed, causal=causal)

    return rank_targets(
        *(score, sequences, split, negatives, machine),
        batch_size=batch_size,
        longest=model.max_len,
        list_length=list_length,
    )


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
        rows: [B] int64 indices of targets of the split.
        causal: predict from the last item, without a mask item.
        device: device of the result.
    """
    windows = known_windows(sequences, split, rows, max_history_length(model.max_len, causal))
    append = None if causal else mask_item(sequences.num_items)
    return pack(sequences, windows, device, append)
