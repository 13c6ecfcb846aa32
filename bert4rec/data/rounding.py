# SPDX-License-Identifier: Apache-2.0
"""Adds tokens that count for nothing to batches, so that few sizes of batches occur.

The sequences of a batch are packed, so almost every batch has another number of tokens. A GPU pays
for each new size: cuBLAS takes 0.4 ms to choose a bfloat16 product of a shape that it has not met
(16 us afterwards), and a CUDA graph belongs to one size. So tokens and targets are rounded up to
multiples of 64, which a GPU computes together anyway, and above 512 to eight sizes per doubling,
which adds 4 to 6% of them. The length of the longest sequence is rounded to two per doubling.

The added tokens are in sequences of their own, so no other token attends to them. Their item is 0
until `LabelledBatch.ignoring` gives them one that the batch looks up anyway.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from bert4rec.data.masking import MaskCounts
from bert4rec.nn.layout import SequenceLayout


def rounded(size: int) -> int:
    """Rounds tokens or targets up."""
    return _up(size, _step(size))


def _step(size: int) -> int:
    """Returns the distance between the rounded sizes around a size."""
    return max(64, _doubling(size) // 8)


def rounded_length(length: int, max_len: int) -> int:
    """Rounds the tokens of the longest sequence up, to at most `max_len`."""
    return min(_up(length, max(8, _doubling(length) // 2)), max_len)


def _doubling(size: int) -> int:
    """Returns the largest power of two below a size."""
    return 1 << max((size - 1).bit_length() - 1, 0)


def _up(size: int, step: int) -> int:
    return max(-(-size // step), 1) * step


@dataclasses.dataclass(frozen=True, slots=True)
class RoundedSizes:
    """The sizes of a batch to which tokens were added.

    Attributes:
        tokens: tokens that the model reads.
        targets: tokens whose item it predicts.
        longest: tokens of the longest sequence.
        most_targets: targets of the sequence that has most; all its tokens in a causal batch.
        added_tokens: number of added tokens.
        added_targets: number of added targets.
        added_sequences: number of added sequences.
    """

    tokens: int
    targets: int
    longest: int
    most_targets: int
    added_tokens: int
    added_targets: int
    added_sequences: int

    @classmethod
    def of(
        cls, tokens: int, longest: int, max_len: int, counts: MaskCounts | None
    ) -> "RoundedSizes":
        """Rounds the sizes of a batch.

        Args:
            tokens: tokens that the model reads.
            longest: tokens of the longest sequence.
            max_len: most tokens of any sequence.
            counts: tokens to mask; None for a causal batch, in which every token is a target.
        """
        longest = rounded_length(longest, max_len)
        more = 0 if counts is None else rounded(counts.total) - counts.total
        size = rounded(tokens + more)
        # As many sequences as the most tokens need that are added to a batch of this size, so that
        # the number of sequences does not vary as well. Each gets at least one token.
        steps = _step(size) + (0 if counts is None else _step(counts.total))
        sequences = -(-steps // longest)
        while size - tokens < sequences:
            size = rounded(size + 1)
        added = size - tokens
        sequences = max(sequences, -(-added // longest))
        most = longest
        if counts is not None:
            largest = max(counts.largest, -(-more // sequences))
            most = rounded_length(largest, longest)
        targets = size if counts is None else counts.total + more
        return cls(size, targets, longest, most, added, more, sequences)


def add_tokens(
    items: Tensor, layout: SequenceLayout, counts: MaskCounts, max_len: int, *, causal: bool
) -> tuple[Tensor, SequenceLayout, MaskCounts]:
    """Adds sequences of item 0 behind those of a batch, up to the rounded sizes.

    Args:
        items: [N] int64 packed item numbers, on the host.
        layout: offsets of the sequences in `items`.
        counts: tokens to mask in each sequence; ignored in a causal batch.
        max_len: most tokens that the model reads of any sequence.
        causal: the last item of a sequence is only a label, not a token that the model reads.

    Returns:
        The three, with the added sequences.
    """
    labels = int(causal)
    tokens = layout.num_tokens - labels * layout.batch_size
    longest = layout.max_length - labels
    sizes = RoundedSizes.of(tokens, longest, max_len, None if causal else counts)
    lengths = torch.from_numpy(_shares(sizes.added_tokens, sizes.added_sequences) + labels)
    num_items = sizes.tokens + labels * (layout.batch_size + sizes.added_sequences)
    items = F.pad(items, (0, num_items - len(items)))
    layout = SequenceLayout.of_lengths(
        torch.cat([layout.lengths(), lengths]), sizes.longest + labels, num_items
    )
    masked = torch.from_numpy(_shares(sizes.added_targets, sizes.added_sequences))
    counts = MaskCounts(
        torch.cat([counts.per_sequence, masked]),
        F.pad(counts.last_only, (0, sizes.added_sequences)),
        sizes.targets,
        sizes.most_targets,
    )
    return items, layout, counts


def _shares(total: int, parts: int) -> npt.NDArray[np.int64]:
    """Divides a number into [parts] nearly equal ones, the larger first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)
