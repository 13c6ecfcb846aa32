# SPDX-License-Identifier: Apache-2.0
"""The tokens whose output is computed, and the items to predict there."""

import dataclasses

import torch
from torch import Tensor

from bert4rec.nn.layout import SequenceLayout


@dataclasses.dataclass(frozen=True, slots=True)
class TargetTokens:
    """The tokens whose output is computed.

    Attributes:
        index: [M] int64 index of each among the N packed tokens, ascending.
        layout: offsets of the sequences in the targets; the tokens' own layout if every token is
            a target.
        positions: [M] int64 position of each in its sequence.
    """

    index: Tensor
    layout: SequenceLayout
    positions: Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LabelledBatch:
    """Tokens, targets and labels of a batch.

    Attributes:
        items: [N] int64 packed item numbers; masked targets are replaced.
        layout: offsets of the sequences in `items`.
        targets: positions of the M targets.
        labels: [M] int64 item to predict at each target, from 1.
        causal: no token attends to a later one.
        negatives: [S] int64 items, from 1, drawn uniformly with repetitions; None with the full
            softmax.
        weights: [M] float32 weights of the targets in the mean loss, with a sum of 1; None weighs
            all equally.
    """

    items: Tensor
    layout: SequenceLayout
    targets: TargetTokens
    labels: Tensor
    causal: bool
    negatives: Tensor | None = None
    weights: Tensor | None = None

    def ignoring(self, is_added: Tensor) -> "LabelledBatch":
        """Returns the batch with added tokens and targets that change neither loss nor gradients.

        They get an item and a label that the batch looks up anyway, so that no further row of a
        table is updated.

        Args:
            is_added: [N] bool, True for added tokens, which follow all others.
        """
        counts = ~is_added[self.targets.index]
        return dataclasses.replace(
            self,
            items=torch.where(is_added, self.items[:1], self.items),
            labels=torch.where(counts, self.labels, self.labels[:1]),
            weights=counts / counts.sum(),
        )

    @property
    def candidates(self) -> Tensor | None:
        """[M + S] labels, then negatives; None with the full softmax."""
        return None if self.negatives is None else torch.cat([self.labels, self.negatives])
