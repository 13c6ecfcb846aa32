# SPDX-License-Identifier: Apache-2.0
"""Scores items for evaluation, recommendation and export.

Scores are computed in blocks of items, so memory does not grow with the catalogue.
"""

import dataclasses
import logging
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bert4rec.model.network import Bert4Rec
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import TargetTokens
from bert4rec.rules import mask_item, max_history_length
from cuda_ext import ops
from recsys.ratings.scorer import Histories
from recsys.train.divergence import find_nonfinite
from recsys.train.memory import to_device

logger = logging.getLogger(__name__)

MAX_SCORES = 1 << 24
"""Scores kept at a time: 64 MiB of float32."""


def last_tokens(layout: SequenceLayout) -> TargetTokens:
    """Returns the last token of each sequence as targets."""
    ones = torch.ones_like(layout.offsets[1:])
    ends = layout.offsets[:-1] + layout.lengths() - 1
    per_sequence = SequenceLayout.of_lengths(ones, 1, layout.batch_size)
    return TargetTokens(ends, per_sequence, ends - layout.offsets[:-1])


@dataclasses.dataclass(frozen=True, slots=True)
class ItemScorer:
    """Scores all items for each history of a batch.

    Attributes:
        vectors: [B, D] output of the network for each history.
        items: [I, D] vectors of the items; row i is item i + 1.
        bias: [I] biases of the items.
        packed: the items, packed by `pack_items` for exact lists; None scores all of them.
    """

    vectors: Tensor
    items: Tensor
    bias: Tensor
    packed: ops.PackedRows | None = None

    @classmethod
    def of_histories(
        cls,
        model: Bert4Rec,
        items: Tensor,
        layout: SequenceLayout,
        *,
        causal: bool,
        packed: ops.PackedRows | None = None,
    ) -> "ItemScorer":
        """Runs the network on packed histories.

        Args:
            model: the network.
            items: [N] int64 packed item numbers; each history ends with the mask item, unless
                `causal`.
            layout: offsets of the histories in `items`.
            causal: predict from the last item, without a mask item.
            packed: the packed items of this model; None scores all items.
        """
        vectors = model(items, layout, last_tokens(layout), causal=causal)
        of_items = model.item_vectors() if packed is None else packed.table
        # Under autocast on a CPU, a normalisation returns them in half precision.
        return cls(vectors.to(of_items.dtype), of_items, model.head.bias, packed)

    def dense(self) -> Tensor:
        """Returns [B, I] float32 scores of all items."""
        return ops.linear(self.vectors, self.items, self.bias).to(torch.float32)

    def find_nonfinite(self, *, with_items: bool) -> str | None:
        """Names the value that is NaN or infinite; None if all are finite. See `Scorer`."""
        computed = {"the vector of a history": self.vectors}
        if with_items:
            computed |= {"the vector of an item": self.items, "the bias of an item": self.bias}
        return find_nonfinite(computed)

    def _block_rows(self, max_scores: int) -> int:
        return max(max_scores // max(self.vectors.shape[0], 1), 1)

    def _blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (first item row, [B, rows] scores), with up to `size` rows."""
        for start in range(0, self.items.shape[0], size):
            rows = slice(start, start + size)
            scores = ops.linear(self.vectors, self.items[rows], self.bias[rows])
            yield start, scores.to(torch.float32)

    def scores_of(self, items: Tensor) -> Tensor:
        """Scores given candidates of each history.

        Args:
            items: [B, K] int64 item numbers, from 1.

        Returns:
            [B, K] float32.
        """
        vectors = self.items[items - 1]
        scores = torch.einsum("bd,bsd->bs", self.vectors, vectors) + self.bias[items - 1]
        return scores.to(torch.float32)

    def ranks(
        self, truth: Tensor, seen_row: Tensor, seen_item: Tensor, max_scores: int = MAX_SCORES
    ) -> tuple[Tensor, Tensor]:
        """Ranks the true item of each history among all items.

        Ties count against the true item, and so does a score that is NaN.

        Args:
            truth: [B] int64 item numbers, from 1.
            seen_row: [P] int64 history of each seen item.
            seen_item: [P] int64 seen items, distinct within a history and never its true item.
            max_scores: scores in memory at a time.

        Returns:
            ([B] int64 rank from 0 among all items, [B] int64 rank without the seen items).
        """
        rows = torch.arange(len(truth), device=truth.device)
        column = truth - 1
        true = self.vectors.new_empty(len(truth), dtype=torch.float32)
        # The true item's score is an element of the same product as the others, equal to the bit.
        size = self._block_rows(max_scores)
        blocks = list(self._blocks(size)) if self.items.shape[0] <= size else None
        for start, scores in blocks or self._blocks(size):
            inside = (column >= start) & (column < start + scores.shape[1])
            true[inside] = scores[rows[inside], column[inside] - start]
        ahead = torch.full_like(truth, -1)  # the true item is not below itself
        seen_ahead = torch.zeros_like(truth)
        for start, scores in blocks or self._blocks(size):
            is_ahead = ~(scores < true.unsqueeze(1))
            ahead += is_ahead.sum(1)
            inside = (seen_item > start) & (seen_item <= start + scores.shape[1])
            row, item = seen_row[inside], seen_item[inside] - 1 - start
            seen_ahead.index_add_(0, row, is_ahead[row, item].to(torch.int64))
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

        `packed` items are ordered by scores in float64, and items with equal scores by number,
        whatever the size of the catalogue. Otherwise scores are float32, and items whose scores
        differ by less than its rounding may come in either order.

        Args:
            count: K.
            seen_row: [P] int64 history of each seen item.
            seen_item: [P] int64 item to leave out of that history's list; 0 leaves none out.
            max_scores: scores in memory at a time.
            block_rows: items scored at a time, whatever B is; None derives it from `max_scores`.

        Returns:
            ([B, K] int64 item numbers, best first, [B, K] float32 scores).
        """
        if self.packed is not None and bool(self.vectors.isfinite().all()):
            count = min(count, self.items.shape[0])
            rows, products, _ = ops.top_rows(
                self.packed, self.vectors, count, seen_row, seen_item - 1
            )
            return rows + 1, products
        best: tuple[Tensor, Tensor] | None = None
        for start, scores in self._blocks(block_rows or self._block_rows(max_scores)):
            inside = (seen_item > start) & (seen_item <= start + scores.shape[1])
            # Items of other blocks add 0 to the first column: no shape depends on the data.
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


def pack_items(model: Bert4Rec) -> ops.PackedRows | None:
    """Packs the items of a model that no longer changes, for exact lists.

    The packed items take one byte per value and eight bytes per item, in addition to the table.

    Returns:
        The packed items; None if no compiled kernel can search them, or a value is not finite.
    """
    items, bias = model.item_vectors(), model.head.bias
    if not ops.scans_rows(items):
        return None
    if not bool(items.isfinite().all() and bias.isfinite().all()):
        logger.warning(
            "an item's vector or bias is not finite, so lists are ordered by float32 scores"
        )
        return None
    return ops.pack_rows(items, bias)


def scorer_for(
    model: Bert4Rec,
    histories: Histories,
    *,
    causal: bool,
    packed: ops.PackedRows | None = None,
) -> ItemScorer:
    """Runs a model on histories, shortened to their last items.

    Args:
        model: network in evaluation mode.
        histories: B arrays of item numbers, oldest first; none empty if `causal`.
        causal: predict from the last item, without a mask item.
        packed: the packed items of this model; None scores all items.
    """
    longest = max_history_length(model.max_len, causal)
    ends: list[int] = [] if causal else [mask_item(model.num_items)]
    tokens = [np.append(history[max(len(history) - longest, 0) :], ends) for history in histories]
    lengths = np.array([len(items) for items in tokens], np.int64)
    device = model.head.bias.device
    items = to_device(torch.from_numpy(np.concatenate(tokens).astype(np.int64)), device)
    layout = SequenceLayout.of_lengths(
        to_device(torch.from_numpy(lengths), device), int(lengths.max()), int(lengths.sum())
    )
    return ItemScorer.of_histories(model, items, layout, causal=causal, packed=packed)


@dataclasses.dataclass(frozen=True, slots=True)
class TrainedBert4Rec:
    """A network that no longer changes; see `RatingsModel`.

    Attributes:
        network: the network, in evaluation mode.
        causal: it predicts from the last item, without a mask item.
        packed: its items, packed for exact lists; None scores all of them.
    """

    network: Bert4Rec
    causal: bool
    packed: ops.PackedRows | None = None

    @classmethod
    def of(cls, network: Bert4Rec, *, causal: bool) -> "TrainedBert4Rec":
        """Packs the items of a network."""
        with torch.inference_mode():
            return cls(network.eval(), causal, pack_items(network))

    @property
    def num_items(self) -> int:
        """I."""
        return self.network.num_items

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return self.network.head.bias.device

    def scorer(self, histories: Histories) -> ItemScorer:
        """Runs the network on histories, shortened to their last items."""
        return scorer_for(self.network, histories, causal=self.causal, packed=self.packed)
