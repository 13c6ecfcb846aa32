# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a batch are hidden and asked for, drawn anew for every batch.

How many tokens of each sequence are masked is drawn on the host, which of them on the device: so
the host knows the shapes of the step and never waits. A binomial count and then a uniform subset
of that size is what independent draws per token give. Letters: B sequences, N tokens, M targets.
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
    """How tokens are masked.

    Attributes:
        mask_prob: share of the tokens of a sequence that are asked for; one at least.
        mask_last_prob: share of the sequences of which the last token alone is asked for, as it
            is when the model is used.
        mask_last_of: what is drawn for that: each of the `sequences` of a batch, whose last tokens
            then count little among the other targets; or whole `batches`.
        mask_replace: share of the targets that the mask item replaces.
        random_replace: share of the targets that a random item replaces; the rest stay visible.
    """

    mask_prob: float = 0.15
    mask_last_prob: float = 0.0
    mask_last_of: MaskLastOf = "sequences"
    mask_replace: float = 0.8
    random_replace: float = 0.1

    @classmethod
    def of(cls, config: ObjectiveConfig) -> "MaskingRule":
        """Takes the rule from the settings of the objective."""
        return cls(
            mask_prob=config.mask_prob,
            mask_last_prob=config.mask_last_prob,
            mask_last_of=config.mask_last_of,
            mask_replace=config.mask_replace,
            random_replace=config.random_replace,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MaskedBatch:
    """What a step of the cloze objective sees.

    Attributes:
        items: [N] int64, with targets hidden.
        layout: of the items.
        targets: where the hidden tokens are.
        labels: [M] int64, the items that were there.
    """

    items: Tensor
    layout: SequenceLayout
    targets: Targets
    labels: Tensor


def draw_counts(
    lengths: npt.NDArray[np.int64], rule: MaskingRule, generator: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Draws on the host how many tokens of each sequence are masked.

    Args:
        lengths: [B], at least 1 each.
        rule: the shares.
        generator: of the host.

    Returns:
        ([B] counts, [B] whether the last token alone is masked).
    """
    drawn = generator.random(len(lengths))
    if rule.mask_last_of == "batches":
        drawn[:] = drawn[:1]
    last_only = drawn < rule.mask_last_prob
    counts = np.maximum(generator.binomial(lengths, rule.mask_prob), 1)
    return np.where(last_only, 1, counts), last_only


def mask_tokens(
    items: Tensor,
    layout: SequenceLayout,
    counts: npt.NDArray[np.int64],
    last_only: npt.NDArray[np.bool_],
    rule: MaskingRule,
    num_items: int,
    generator: torch.Generator,
) -> MaskedBatch:
    """Hides tokens.

    Args:
        items: [N] int64 in [1, num_items]; not changed.
        layout: of the items.
        counts: [B], from `draw_counts`.
        last_only: [B], likewise.
        rule: the shares.
        num_items: the mask item is the number after it.
        generator: of the items' device.

    Returns:
        The masked tokens and what was there.
    """
    device = items.device
    num_targets = int(counts.sum())
    last = torch.from_numpy(last_only).to(device)
    per_sequence = torch.from_numpy(counts).to(device)
    keys = torch.rand(items.shape, generator=generator, device=device, dtype=torch.float64)
    # Where the last token alone is asked for, its key is the smallest of the sequence.
    ends = layout.offsets[1:] - 1
    keys[ends] = torch.where(last, -1.0, keys[ends])
    order = (keys * 0.5 + layout.sequence_of_token()).argsort()
    target_layout = SequenceLayout.of_lengths(per_sequence, int(counts.max()), num_targets)
    starts = layout.offsets[target_layout.sequence_of_token()]
    index = order[starts + target_layout.place_of_token()].sort().values
    labels = items[index]
    drawn = torch.rand(num_targets, generator=generator, device=device)
    others = torch.randint(
        1, num_items + 1, (num_targets,), generator=generator, device=device, dtype=items.dtype
    )
    shown = torch.where(drawn < rule.mask_replace + rule.random_replace, others, labels)
    shown = shown.masked_fill(drawn < rule.mask_replace, mask_item(num_items))
    places = index - layout.offsets[target_layout.sequence_of_token()]
    return MaskedBatch(
        items.index_copy(0, index, shown), layout, Targets(index, target_layout, places), labels
    )
