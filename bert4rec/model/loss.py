# SPDX-License-Identifier: Apache-2.0
"""The network and its loss: one call of a training step.

Letters: N tokens, M targets, S negatives, D columns.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from bert4rec.model.network import Bert4Rec
from bert4rec.nn.block import Targets
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.softmax_loss import generalised_bce, sampled_softmax, softmax_cross_entropy

Loss = Literal["full", "sampled", "gbce"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Tokens, targets and labels of a batch.

    Attributes:
        items: [N] int64, packed sequences.
        layout: of the items.
        targets: M of the tokens.
        labels: [M] int64, the true items, from 1.
        causal: let no token see a later one.
        negatives: [S] int64, items from 1; None with the full softmax.
        log_expected: [S], logarithm of how often each negative is expected among the S draws.
    """

    items: Tensor
    layout: SequenceLayout
    targets: Targets
    labels: Tensor
    causal: bool
    negatives: Tensor | None = None
    log_expected: Tensor | None = None


def loss_of(
    kind: Loss,
    calibration: float,
    num_items: int,
    question: Question,
    queries: Tensor,
    vectors: Tensor,
    bias: Tensor,
) -> Tensor:
    """Compares queries with the true items and the negatives.

    Args:
        kind: `sampled` or `gbce`.
        calibration: of gBCE.
        num_items: of the catalogue.
        question: with negatives.
        queries: [M, D].
        vectors: [M + S, D], of the true items, then of the negatives.
        bias: [M + S], likewise.

    Returns:
        Mean over the targets, float32; 0 where there are none.
    """
    assert question.negatives is not None
    assert question.log_expected is not None
    count = queries.shape[0]
    if not count:
        return (queries.sum() + 0 * (vectors.sum() + bias.sum())).to(torch.float32)
    true = (queries * vectors[:count]).sum(1) + bias[:count]
    others = torch.addmm(bias[count:], queries, vectors[count:].t())
    if kind == "gbce":
        return generalised_bce(
            true, others, question.labels, question.negatives, num_items, calibration
        )
    # The true item is always among those compared: it was "drawn" with probability one.
    certain = torch.zeros_like(true, dtype=torch.float32)
    return sampled_softmax(
        true, others, question.labels, question.negatives, certain, question.log_expected
    )


class LossNetwork(nn.Module):
    """A network and its loss.

    Args:
        model: the network.
        kind: of the loss.
        calibration: of gBCE.
    """

    def __init__(self, model: Bert4Rec, kind: Loss, calibration: float) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.calibration = calibration

    def forward(self, question: Question) -> Tensor:
        """Returns the mean loss over the targets, a float32 scalar."""
        model = self.model
        queries = model(question.items, question.layout, question.targets, causal=question.causal)
        if question.negatives is None:
            return softmax_cross_entropy(
                queries, model.item_vectors(), model.head.bias, question.labels - 1
            )
        compared = torch.cat([question.labels, question.negatives])
        vectors, bias = model.vectors_of(compared)
        return loss_of(
            self.kind, self.calibration, model.num_items, question, queries, vectors, bias
        )
