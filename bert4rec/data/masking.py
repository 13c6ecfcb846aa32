# SPDX-License-Identifier: Apache-2.0
"""Samples masked tokens, and labels the next items of causal batches.

The host draws how many tokens of each sequence are masked, the device draws which: so the host
knows every shape of the step and never waits. A binomial count and then a uniform subset of that
size have the same distribution as independent draws per token.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.config import MaskLastOf, ObjectiveConfig
from bert4rec.nn.block import Targets
from bert4rec.nn.layout import SequenceLayout
from bert4rec.rules import mask_item


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MaskingRule:
    """Probabilities of masking.

    Attributes:
        mask_prob: fraction of a sequence's tokens that are targets; at least one token is.
        mask_last_prob: fraction of the sequences whose last token is the only target, as it is
            when the model recommends.
        mask_last_of: unit of that draw: each of the `sequences` of a batch, whose single target
            then weighs little beside the others; or whole `batches`.
        mask_replace: fraction of the targets that the mask item replaces.
        random_replace: fraction of the targets that a random item replaces; the rest stay visible.
    """

    mask_prob: float = 0.15
    mask_last_prob: float = 0.0
    mask_last_of: MaskLastOf = "sequences"
    mask_replace: float = 0.8
    random_replace: float = 0.1

    @classmethod
    def of(cls, config: ObjectiveConfig) -> "MaskingRule":
        """Copies the probabilities from the settings of the objective."""
        return cls(
            mask_prob=config.mask_prob,
            mask_last_prob=config.mask_last_prob,
            mask_last_of=config.mask_last_of,
            mask_replace=config.mask_replace,
            random_replace=config.random_replace,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MaskedBatch:
    """Masked tokens, and the items to predict at them.

    Attributes:
        items: [N] int64, with targets replaced.
        layout: offsets of the sequences in `items`.
        targets: positions of the M targets.
        labels: [M] int64, items at the targets before masking.
    """

    items: Tensor
    layout: SequenceLayout
    targets: Targets
    labels: Tensor


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
    lengths: npt.NDArray[np.int64], rule: MaskingRule, generator: np.random.Generator
) -> MaskCounts:
    """Draws on the host how many tokens of each sequence are masked.

    Args:
        lengths: [B] int64 tokens of each sequence, at least 1.
        rule: probabilities of masking.
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
    rule: MaskingRule,
    num_items: int,
    generator: torch.Generator,
) -> MaskedBatch:
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
    # The tokens with the smallest keys are targets: -1 makes it the last one for certain.
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
    return MaskedBatch(
        items.index_copy(0, index, shown), layout, Targets(index, target_layout, positions), labels
    )


def next_item_batch(items: Tensor, layout: SequenceLayout) -> MaskedBatch:
    """Makes a causal batch: each token's label is the item after it.

    The last item of a sequence is a label only, since nothing follows it. So the positions of the
    tokens, counted from the end, are those of recommendation.

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
    targets = Targets(tokens, shorter, positions)
    return MaskedBatch(items[index], shorter, targets, items[index + 1])
