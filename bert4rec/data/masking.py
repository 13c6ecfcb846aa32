# SPDX-License-Identifier: Apache-2.0
"""Samples masked tokens, and labels the next items of causal batches.

The host draws how many tokens of each sequence are masked, and the device draws which ones. So the
host knows every shape of the step and never waits for the device. A binomial count followed by a
uniform subset of that size has the same distribution as independent draws per token.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.config import ObjectiveConfig
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.targets import LabelledBatch, TargetTokens
from bert4rec.rules import mask_item


@dataclasses.dataclass(frozen=True, slots=True)
class MaskCounts:
    """Number of tokens to mask in each sequence.

    Attributes:
        per_sequence: [B] int64.
        last_only: [B] bool, True where the last token is the only target.
        total: their sum, M.
        largest: the largest of them.
    """

    per_sequence: Tensor
    last_only: Tensor
    total: int
    largest: int


def draw_counts(
    lengths: npt.NDArray[np.int64], rule: ObjectiveConfig, generator: np.random.Generator
) -> MaskCounts:
    """Draws on the host how many tokens of each sequence are masked.

    Args:
        lengths: [B] int64 tokens of each sequence, at least 1.
        rule: probabilities of masking. `mask_last_prob` is drawn for each sequence, whose single
            target then has little weight compared with those of the others, or for whole batches.
        generator: random generator on the host.
    """
    drawn = generator.random(len(lengths))
    if rule.mask_last_of == "batches":
        drawn[:] = drawn[:1]
    last_only = drawn < rule.mask_last_prob
    counts = np.maximum(generator.binomial(lengths, rule.mask_prob), 1)
    counts = np.where(last_only, 1, counts)
    tensors = torch.from_numpy(counts), torch.from_numpy(last_only)
    return MaskCounts(*tensors, int(counts.sum()), int(counts.max(initial=0)))


def mask_tokens(
    items: Tensor,
    layout: SequenceLayout,
    counts: MaskCounts,
    rule: ObjectiveConfig,
    num_items: int,
    generator: torch.Generator,
) -> LabelledBatch:
    """Replaces randomly chosen tokens.

    Args:
        items: [N] int64 in [1, num_items]; not changed.
        layout: offsets of the sequences in `items`.
        counts: from `draw_counts`, on the device of `items`.
        rule: probabilities of masking.
        num_items: items of the catalogue.
        generator: random generator on the device of `items`.
    """
    device = items.device
    keys = torch.rand(items.shape, generator=generator, device=device, dtype=torch.float64)
    # The tokens with the smallest keys are targets; a key of -1 makes sure that the last one is.
    ends = layout.offsets[1:] - 1
    keys[ends] = torch.where(counts.last_only, -1.0, keys[ends])
    order = (keys * 0.5 + layout.sequence_of_token()).argsort()
    target_layout = SequenceLayout.of_lengths(counts.per_sequence, counts.largest, counts.total)
    starts = layout.offsets[target_layout.sequence_of_token()]
    index = order[starts + target_layout.position_of_token()].sort().values
    labels = items[index]
    drawn = torch.rand(counts.total, generator=generator, device=device)
    others = torch.randint(
        1, num_items + 1, (counts.total,), generator=generator, device=device, dtype=items.dtype
    )
    shown = torch.where(drawn < rule.mask_replace + rule.random_replace, others, labels)
    shown = shown.masked_fill(drawn < rule.mask_replace, mask_item(num_items))
    positions = index - layout.offsets[target_layout.sequence_of_token()]
    return LabelledBatch(
        items=items.index_copy(0, index, shown),
        layout=layout,
        targets=TargetTokens(index, target_layout, positions),
        labels=labels,
        causal=False,
    )


def next_item_batch(items: Tensor, layout: SequenceLayout) -> LabelledBatch:
    """Makes a causal batch: each token's label is the item after it.

    The last item of a sequence is only a label, since nothing follows it. So the tokens have the
    same positions, counted from the end, as in recommendation.

    Args:
        items: [N] int64 packed item numbers.
        layout: offsets of the sequences in `items`; a sequence of one item adds no token.

    Returns:
        A batch of N - B tokens, each of them a target.
    """
    lengths = layout.lengths() - 1
    shorter = SequenceLayout.of_lengths(
        lengths, layout.max_length - 1, layout.num_tokens - layout.batch_size
    )
    positions = shorter.position_of_token()
    index = layout.offsets[shorter.sequence_of_token()] + positions
    tokens = torch.arange(shorter.num_tokens, device=items.device)
    targets = TargetTokens(tokens, shorter, positions)
    return LabelledBatch(
        items=items[index], layout=shorter, targets=targets, labels=items[index + 1], causal=True
    )


def draw_uniformly(
    num_items: int, count: int, generator: torch.Generator, device: torch.device
) -> Tensor:
    """Draws [count] int64 items with repetitions, by a generator on the device."""
    return torch.randint(1, num_items + 1, (count,), generator=generator, device=device)
