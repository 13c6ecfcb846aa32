# SPDX-License-Identifier: Apache-2.0
"""Attention for training on a CPU, in blocks that fit its cache.

Queries, keys and values are read from one fused tensor and their gradients are written to another,
so no [N, D] tensor is copied, padded or concatenated. Attention weights are kept for backward, with
dropout as their sign. D = H E; B and T are those of a block.
"""

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bert4rec.nn.dropout import draw_kept
from bert4rec.nn.layout import SequenceLayout

_WEIGHTS = 1 << 17
"""Attention weights of a block, half a MiB of float32."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """Packed rows of a block's sequences, and their index when padded.

    Attributes:
        rows: slice of the packed rows.
        count: B.
        longest: rows of the longest sequence.
        index: [rows] int64 index of each among B x longest; None if all are of the same length.
    """

    rows: slice
    count: int
    longest: int
    index: Tensor | None

    def padded(self, packed: Tensor, heads: int) -> Tensor:
        """Maps [rows, D], possibly a strided view, to [B H, longest, E]."""
        rows = packed[self.rows]
        if self.index is not None:
            flat = rows.new_zeros(self.count * self.longest, rows.shape[1])
            rows = flat.index_copy_(0, self.index, rows)
        by_head = rows.view(self.count, self.longest, heads, -1).transpose(1, 2)
        return by_head.reshape(self.count * heads, self.longest, rows.shape[1] // heads)

    def write(self, padded: Tensor, packed: Tensor, heads: int) -> None:
        """Writes [B H, longest, E] to the block's rows of [.., D]."""
        by_token = padded.view(self.count, heads, self.longest, -1).transpose(1, 2)
        target = packed[self.rows]
        if self.index is None:
            target.view(by_token.shape).copy_(by_token)
        else:
            target.copy_(by_token.flatten(0, 1).flatten(1).index_select(0, self.index))


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    """A block of sequences.

    `hidden` is [B, 1, Q or 1, T] bool, True for keys that are not attended to; None if all are.
    """

    queries: _Rows
    keys: _Rows
    hidden: Tensor | None


class _Lengths:
    """A layout on the host: packed rows of any range of sequences."""

    def __init__(self, layout: SequenceLayout) -> None:
        self.offsets: list[int] = layout.offsets.tolist()
        self.lengths = layout.lengths()
        self._sequence = layout.sequence_of_token()
        self._position = layout.position_of_token()

    def longest(self, start: int, stop: int) -> int:
        return int(self.lengths[start:stop].max())

    def rows(self, start: int, stop: int) -> _Rows:
        rows = slice(self.offsets[start], self.offsets[stop])
        longest, count = self.longest(start, stop), stop - start
        if rows.stop - rows.start == longest * count:
            return _Rows(rows, count, longest, None)
        index = (self._sequence[rows] - start) * longest + self._position[rows]
        return _Rows(rows, count, longest, index)


def _runs(queries: _Lengths, keys: _Lengths, heads: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of at least one sequence that fit a block.

    Batches are sorted by length, so sequences of a block differ little and few rows are padding.
    """
    start = most_queries = most_keys = 0
    pairs = zip(queries.lengths.tolist(), keys.lengths.tolist(), strict=True)
    for number, (of_queries, of_keys) in enumerate(pairs):
        most_queries, most_keys = max(most_queries, of_queries), max(most_keys, of_keys)
        if heads * most_queries * most_keys * (number + 1 - start) > _WEIGHTS and number > start:
            yield start, number
            start, most_queries, most_keys = number, of_queries, of_keys
    if start < len(keys.offsets) - 1:
        yield start, len(keys.offsets) - 1


def _blocks(
    query_layout: SequenceLayout,
    key_layout: SequenceLayout,
    positions: Tensor | None,
    causal: bool,
    heads: int,
) -> Iterator[_Block]:
    """Yields blocks of the sequences that have queries."""
    same = query_layout is key_layout
    key_lengths = _Lengths(key_layout)
    query_lengths = key_lengths if same else _Lengths(query_layout)
    for start, stop in _runs(query_lengths, key_lengths, heads):
        if not query_lengths.longest(start, stop):
            continue
        keys = key_lengths.rows(start, stop)
        queries = keys if same else query_lengths.rows(start, stop)
        number = torch.arange(keys.longest)
        hidden = None
        if causal and positions is None:
            hidden = number > number.unsqueeze(1)
        elif causal:
            assert positions is not None
            of_query = queries.padded(positions.unsqueeze(1), 1).squeeze(2)
            hidden = (number > of_query.unsqueeze(2)).unsqueeze(1)
        elif keys.index is not None:
            hidden = (number >= key_lengths.lengths[start:stop].unsqueeze(1))[:, None, None, :]
        yield _Block(queries, keys, hidden)


class BlockedAttention(torch.autograd.Function):
    """Softmax attention with dropout."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        queries: Tensor | None,
        fused: Tensor,
        query_layout: SequenceLayout,
        key_layout: SequenceLayout,
        positions: Tensor | None,
        causal: bool,
        heads: int,
        dropped_levels: int,
    ) -> Tensor:
        """Attends from each query to the tokens of its own sequence.

        Args:
            ctx: keeps the attention weights.
            queries: [Q, D]; None if they are the first columns of `fused`.
            fused: [N, 2 D] keys and values, or [N, 3 D] with the queries before them.
            query_layout: offsets of the sequences in the queries.
            key_layout: offsets of the same sequences in `fused`.
            positions: [Q] int64 position of each query in its sequence; None if every token is a
                query.
            causal: attend to no later position than the query's own.
            heads: H.
            dropped_levels: dropout probability in 1/256.

        Returns:
            [Q, D].
        """
        q_rows, keys, values = _split_projections(queries, fused)
        output = fused.new_empty(q_rows.shape)
        factor = 256 / (256 - dropped_levels)
        scale = math.sqrt(heads / q_rows.shape[1])
        kept: list[_Block] = []
        kept_weights: list[Tensor] = []
        for block in _blocks(query_layout, key_layout, positions, causal, heads):
            q = block.queries.padded(q_rows, heads).mul(scale)
            k, v = (block.keys.padded(x, heads) for x in (keys, values))
            weights = _softmax(torch.bmm(q, k.transpose(1, 2)), block, heads)
            if dropped_levels:
                # A dropped weight is kept as its negative: backward needs the weight as well.
                sign = draw_kept(weights, dropped_levels).mul_(2).sub_(1)
                weights.mul_(sign)
                mixed = torch.bmm(torch.relu(weights), v.mul(factor))
            else:
                mixed = torch.bmm(weights, v)
            block.queries.write(mixed, output, heads)
            kept.append(block)
            kept_weights.append(weights)
        # As saved tensors, the weights are dropped where blocks are computed again in backward.
        ctx.save_for_backward(queries, fused, *kept_weights)  # type: ignore[arg-type]
        ctx.kept = kept  # type: ignore[attr-defined]
        ctx.settings = (heads, scale, factor)  # type: ignore[attr-defined]
        return output

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor, None, None, None, None, None, None]:
        """Returns the gradients of `queries` and `fused`."""
        queries, fused, *kept_weights = ctx.saved_tensors  # type: ignore[attr-defined]
        heads, scale, factor = ctx.settings  # type: ignore[attr-defined]
        kept = ctx.kept  # type: ignore[attr-defined]
        to_queries = None if queries is None else torch.zeros_like(queries)
        to_fused = torch.zeros_like(fused)
        q_rows, keys, values = _split_projections(queries, fused)
        to_q_rows, to_keys, to_values = _split_projections(to_queries, to_fused)
        for block, signed in zip(kept, kept_weights, strict=True):
            q = block.queries.padded(q_rows, heads).mul(scale)
            k, v = (block.keys.padded(x, heads) for x in (keys, values))
            delta = block.queries.padded(gradient, heads).mul(factor)
            used = torch.relu(signed)
            block.keys.write(torch.bmm(used.transpose(1, 2), delta), to_values, heads)
            to_weights = torch.ops.aten.threshold_backward(
                torch.bmm(delta, v.transpose(1, 2)), signed, 0
            )
            to_scores = torch._softmax_backward_data(to_weights, signed.abs(), 2, signed.dtype)
            block.keys.write(torch.bmm(to_scores.transpose(1, 2), q), to_keys, heads)
            block.queries.write(torch.bmm(to_scores, k).mul_(scale), to_q_rows, heads)
        return to_queries, to_fused, None, None, None, None, None, None


def _split_projections(queries: Tensor | None, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, each [.., D]."""
    if queries is None:
        first, second, third = fused.chunk(3, dim=1)
        return first, second, third
    keys, values = fused.chunk(2, dim=1)
    return queries, keys, values


def _softmax(scores: Tensor, block: _Block, heads: int) -> Tensor:
    if block.hidden is not None:
        by_head = scores.view(-1, heads, *scores.shape[1:])
        by_head.masked_fill_(block.hidden, -math.inf)
    return scores.softmax(2)
