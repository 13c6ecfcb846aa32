# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec as an exportable network: padded histories in, recommended items out."""

import torch
from torch import Tensor, nn

from bert4rec.model.network import Bert4Rec
from bert4rec.model.scoring import ItemScorer
from bert4rec.nn.layout import SequenceLayout
from bert4rec.rules import mask_item, max_history_length
from recsys.ratings.scorer import LOWEST_SCORE

_BLOCK_ROWS = 1 << 16
"""Items scored at a time: 256 KiB of scores for each history."""


class NextItemNetwork(nn.Module):
    """A BERT4Rec for histories of a fixed length.

    Args:
        model: the network, in evaluation mode.
        top_k: K.
        causal: predict from the last item, without a mask item.

    Attributes:
        history_length: T, items of the longest history that fits the model.
    """

    def __init__(self, model: Bert4Rec, top_k: int, causal: bool) -> None:
        super().__init__()
        self.model = model
        self.history_length = max_history_length(model.max_len, causal)
        self._top_k = top_k
        self._causal = causal

    def forward(self, history: Tensor, exclude_seen: Tensor) -> tuple[Tensor, Tensor]:
        """Finds the best next items.

        Args:
            history: [B, T] int64 item numbers, oldest first; 0 and other numbers that are not
                items are skipped, wherever they are.
            exclude_seen: [B, 1] bool, do not recommend items of the history.

        Returns:
            ([B, K] int64 items, best first, [B, K] float32 scores); 0 and `LOWEST_SCORE` where
            no item is left.
        """
        is_item = (history > 0) & (history <= self.model.num_items)
        history = history.masked_fill(~is_item, 0)
        rows, length = history.shape[0], self.history_length + (0 if self._causal else 1)
        # Items move to the front in their order, the rest to a last column, which is cut off.
        position = torch.where(is_item, is_item.to(torch.int64).cumsum(1) - 1, length)
        items = history.new_zeros(rows, length + 1).scatter(1, position, history)[:, :length]
        lengths = is_item.sum(1)
        if not self._causal:
            mask = torch.full_like(history[:, :1], mask_item(self.model.num_items))
            items = items.scatter(1, lengths.unsqueeze(1), mask)
            lengths = lengths + 1
        layout = SequenceLayout.of_padded(lengths.clamp(min=1), length)
        scorer = ItemScorer.of_histories(self.model, items.flatten(), layout, causal=self._causal)
        seen_row = torch.arange(rows, device=history.device).unsqueeze(1).expand_as(history)
        seen_item = torch.where(exclude_seen, history, 0)
        best, scores = scorer.top(
            self._top_k, seen_row.flatten(), seen_item.flatten(), block_rows=_BLOCK_ROWS
        )
        return best.masked_fill(scores.isneginf(), 0), scores.clamp(min=LOWEST_SCORE)
