# SPDX-License-Identifier: Apache-2.0
"""The best next items of histories that lie in host memory. Letters: B histories, N tokens."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import Queries
from bert4rec.nn.layout import SequenceLayout
from bert4rec.rules import mask_item, room_for_items

Histories = Sequence[npt.NDArray[np.int64]]


def ask(model: Bert4Rec, histories: Histories, *, causal: bool) -> Queries:
    """Asks a model for the next item of each history, by the last items that it has room for.

    Args:
        model: in evaluation mode.
        histories: B arrays of item numbers, oldest first; none empty where `causal`.
        causal: the model predicts from the last item, without a mask behind it.
    """
    room = room_for_items(model.max_len, causal)
    ends: list[int] = [] if causal else [mask_item(model.num_items)]
    shown = [np.append(history[max(len(history) - room, 0) :], ends) for history in histories]
    lengths = np.array([len(items) for items in shown], np.int64)
    device = model.head.bias.device
    items = torch.from_numpy(np.concatenate(shown).astype(np.int64)).to(device)
    layout = SequenceLayout.of_lengths(
        torch.from_numpy(lengths).to(device), int(lengths.max()), int(lengths.sum())
    )
    return Queries.of_histories(model, items, layout, causal=causal)


def pairs(histories: Histories, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns (history, item) of every item of the histories: [P] int64 each."""
    lengths = [len(history) for history in histories]
    rows = np.repeat(np.arange(len(histories)), lengths)
    items = np.concatenate([*histories, np.empty(0, np.int64)])
    return torch.from_numpy(rows).to(device), torch.from_numpy(items).to(device)
