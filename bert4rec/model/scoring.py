# SPDX-License-Identifier: Apache-2.0
"""Scores of items, for evaluation, recommendation and export alike.

No matrix of more than a stated number of scores is ever made, however many items there are.
Letters: B histories, I items, D columns, P pairs of a history and an item it holds.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.model.network import Bert4Rec
from bert4rec.nn.block import Targets
from bert4rec.nn.layout import SequenceLayout
from bert4rec.rules import mask_item, room_for_items

Histories = Sequence[npt.NDArray[np.int64]]

MAX_SCORES = 1 << 24
"""Scores kept at a time: 64 MiB of float32."""


def last_tokens(layout: SequenceLayout) -> Targets:
    """Returns the last token of each sequence as targets."""
    ones = torch.ones_like(layout.offsets[1:])
    ends = layout.offsets[:-1] + layout.lengths() - 1
    per_sequence = SequenceLayout.of_lengths(ones, 1, layout.batch_size)
    return Targets(ends, per_sequence, ends - layout.offsets[:-1])


@dataclasses.dataclass(frozen=True, slots=True)
class Queries:
    """Vectors to compare with the items, one per history.

    Attributes:
        vectors: [B, D].
        items: [I, D], row i for item i + 1.
        bias: [I].
    """

    vectors: Tensor
    items: Tensor
    bias: Tensor

    @classmethod
    def of_histories(
        cls, model: Bert4Rec, items: Tensor, layout: SequenceLayout, *, causal: bool
    ) -> "Queries":
        """Asks a model for the next item of each history.

        Args:
            model: the network.
            items: [N] int64, packed histories; each ends with the mask item, unless `causal`.
            layout: of the items.
            causal: the last item itself asks for the next one.
        """
        vectors = model(items, layout, last_tokens(layout), causal=causal)
        return cls(vectors, model.item_vectors(), model.head.bias)

    def _block_rows(self, max_scores: int) -> int:
        return max(max_scores // max(self.vectors.shape[0], 1), 1)

    def _blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (first item row, [B, rows] scores), with up to `size` rows."""
        for start in range(0, self.items.shape[0], size):
            rows = slice(start, start + size)
            scores = torch.addmm(self.bias[rows], self.vectors, self.items[rows].t())
            yield start, scores.to(torch.float32)

    def scores_of(self, items: Tensor) -> Tensor:
        """Scores some items of each history.

        Args:
            items: [B, S] int64, item numbers from 1.

        Returns:
            [B, S] float32.
        """
        vectors = self.items[items - 1]
        scores = torch.einsum("bd,bsd->bs", self.vectors, vectors) + self.bias[items - 1]
        return scores.to(torch.float32)

    def ranks(
        self, truth: Tensor, seen_row: Tensor, seen_item: Tensor, max_scores: int = MAX_SCORES
    ) -> tuple[Tensor, Tensor]:
        """Ranks the true item of each history among all items.

        An item is ahead if its score is higher, or equal and its number smaller.

        Args:
            truth: [B] int64, item numbers from 1.
            seen_row: [P] int64, history of each pair.
            seen_item: [P] int64, item of each pair, no pair twice, none the truth of its history.
            max_scores: bound on the scores kept at a time.

        Returns:
            ([B] int64 rank from 0 among all items, [B] the same without the seen items).
        """
        rows = torch.arange(len(truth), device=truth.device)
        column = truth - 1
        true = self.vectors.new_empty(len(truth), dtype=torch.float32)
        # The truth's score is taken from the same product as the others', to the bit.
        size = self._block_rows(max_scores)
        blocks = list(self._blocks(size)) if self.items.shape[0] <= size else None
        for start, scores in blocks or self._blocks(size):
            inside = (column >= start) & (column < start + scores.shape[1])
            true[inside] = scores[rows[inside], column[inside] - start]
        ahead = torch.zeros_like(truth)
        seen_ahead = torch.zeros_like(truth)
        for start, scores in blocks or self._blocks(size):
            numbers = torch.arange(start, start + scores.shape[1], device=truth.device)
            before = _is_ahead(scores, numbers, true.unsqueeze(1), column.unsqueeze(1))
            ahead += before.sum(1)
            inside = (seen_item > start) & (seen_item <= start + scores.shape[1])
            row, item = seen_row[inside], seen_item[inside] - 1 - start
            seen_ahead.index_add_(0, row, before[row, item].to(torch.int64))
        return ahead, ahead - seen_ahead

    def top(
        self,
        count: int,
        seen_row: Tensor,
        seen_item: Tensor,
        max_scores: int = MAX_SCORES,
        block_rows: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Finds the best unseen items of each history.

        Args:
            count: items to find.
            seen_row: [P] int64, history of each pair.
            seen_item: [P] int64, item that is left out there; 0 leaves none out.
            max_scores: bound on the scores kept at a time.
            block_rows: items scored at a time, whatever B is; for graphs that serve any B.

        Returns:
            ([B, count] item numbers, best first, [B, count] scores).
        """
        best: tuple[Tensor, Tensor] | None = None
        for start, scores in self._blocks(block_rows or self._block_rows(max_scores)):
            inside = (seen_item > start) & (seen_item <= start + scores.shape[1])
            # Pairs of other blocks add nothing to the first column: no shape depends on the data.
            column = torch.where(inside, seen_item - 1 - start, 0)
            penalty = torch.zeros_like(seen_item, dtype=torch.float32)
            penalty = penalty.masked_fill(inside, float("-inf"))
            scores = scores.index_put((seen_row, column), penalty, accumulate=True)
            top, index = scores.topk(min(count, scores.shape[1]), dim=1)
            items = index + start + 1
            if best is not None:
                top, items = (
                    torch.cat([best[1], top], dim=1),
                    torch.cat([best[0], items], dim=1),
                )
                top, order = top.topk(min(count, top.shape[1]), dim=1)
                items = items.gather(1, order)
            best = items, top
        assert best is not None, "a catalogue has items"
        return best

    def largest_difference(
        self, items: Tensor, scores: Tensor, seen_row: Tensor, seen_item: Tensor
    ) -> float:
        """Compares somebody's best unseen items with these queries', by their scores.

        Two items of like score may change places; what is compared are the scores at each place,
        and the score that these queries give each item.

        Args:
            items: [B, K] int64, best first, 0 where none is left.
            scores: [B, K] float32, -inf where none is left.
            seen_row: [P] int64, as of `top`.
            seen_item: [P] int64, as of `top`.

        Returns:
            The largest difference, relative to the true score where that is above 1; NaN where
            other places are filled.
        """
        _, best = self.top(items.shape[1], seen_row, seen_item)
        items, scores = items.to(best.device), scores.to(best.device)
        filled = scores.isfinite()
        if not torch.equal(filled, best.isfinite()):
            return float("nan")
        largest = 0.0
        for true in (best, self.scores_of(items.clamp(min=1))):
            difference = (scores - true).abs() / true.abs().clamp(min=1)
            largest = max(largest, float(torch.where(filled, difference, 0).max()))
        return largest


def _is_ahead(scores: Tensor, numbers: Tensor, true: Tensor, true_number: Tensor) -> Tensor:
    """Returns where a score outranks the true one; ties by number."""
    return (scores > true) | ((scores == true) & (numbers < true_number))


def rank_among(scores: Tensor) -> Tensor:
    """Returns the rank of the first column; it loses ties.

    Args:
        scores: [B, 1 + S]: the true item, then its negatives.

    Returns:
        [B] int64, from 0.
    """
    return (scores[:, 1:] >= scores[:, :1]).sum(1)


def ask(model: Bert4Rec, histories: Histories, *, causal: bool) -> Queries:
    """Scores the next item of each history, cut to fit the model.

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
