# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec as a network of plain tensors: histories in, the best next items out.

Letters: B histories, L places of a history, K items of an answer.
"""

import torch
from torch import Tensor, nn

from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import Queries
from bert4rec.nn.layout import PaddedLayout
from bert4rec.rules import mask_item, room_for_items

_BLOCK_ROWS = 1 << 16
"""Items scored at a time: 256 KiB of scores for each history."""


class NextItemNetwork(nn.Module):
    """A BERT4Rec for histories of a fixed number of places.

    Args:
        model: the network, in evaluation mode.
        top_k: K.
        causal: the model predicts from the last item, without a mask behind it.

    Attributes:
        history_length: L, the items that the model has room for.
    """

    def __init__(self, model: Bert4Rec, top_k: int, causal: bool) -> None:
        super().__init__()
        self.model = model
        self.history_length = room_for_items(model.max_len, causal)
        self._top_k = top_k
        self._causal = causal

    def forward(self, history: Tensor, exclude_seen: Tensor) -> tuple[Tensor, Tensor]:
        """Finds the best next items.

        Args:
            history: [B, L] int64, item numbers, oldest first; 0 anywhere stands for nothing, and
                so does a number that is no item.
            exclude_seen: [B, 1] bool, leave out the items of the history.

        Returns:
            ([B, K] int64 items, best first, 0 where none is left, [B, K] float32 scores).
        """
        is_item = (history > 0) & (history <= self.model.num_items)
        history = history.masked_fill(~is_item, 0)
        rows, places = history.shape[0], self.history_length + (0 if self._causal else 1)
        # Items move to the front, in their order; nothing goes to a place that is cut off.
        place = torch.where(is_item, is_item.to(torch.int64).cumsum(1) - 1, places)
        items = history.new_zeros(rows, places + 1).scatter(1, place, history)[:, :places]
        lengths = is_item.sum(1)
        if not self._causal:
            mask = torch.full_like(history[:, :1], mask_item(self.model.num_items))
            items = items.scatter(1, lengths.unsqueeze(1), mask)
            lengths = lengths + 1
        layout = PaddedLayout.of_padded(lengths.clamp(min=1), places)
        queries = Queries.of_histories(self.model, items.flatten(), layout, causal=self._causal)
        seen_row = torch.arange(rows, device=history.device).unsqueeze(1).expand_as(history)
        seen_item = torch.where(exclude_seen, history, 0)
        best, scores = queries.top(
            self._top_k, seen_row.flatten(), seen_item.flatten(), block_rows=_BLOCK_ROWS
        )
        return best.masked_fill(scores.isneginf(), 0), scores
