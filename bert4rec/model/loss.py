# SPDX-License-Identifier: Apache-2.0
"""The network and its loss: one call of a training step."""

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from bert4rec.model.compiled import CompiledNetwork
from bert4rec.model.network import Bert4Rec
from bert4rec.nn.block import Targets
from bert4rec.nn.item_lookup import lookup_before_head
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.softmax_loss import generalised_bce, sampled_softmax, softmax_cross_entropy
from cuda_ext import ops

Loss = Literal["full", "sampled", "gbce"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LossInputs:
    """Tokens, targets and labels of a batch.

    Attributes:
        items: [N] int64 packed item numbers.
        layout: offsets of the sequences in `items`.
        targets: positions of the M targets.
        labels: [M] int64 item to predict at each target, from 1.
        causal: no token attends to a later one.
        negatives: [S] int64 items, from 1; None with the full softmax.
        log_expected: [S] float32 logarithm of each negative's expected count among S draws.
    """

    items: Tensor
    layout: SequenceLayout
    targets: Targets
    labels: Tensor
    causal: bool
    negatives: Tensor | None = None
    log_expected: Tensor | None = None


def sampled_loss(
    kind: Loss,
    num_items: int,
    inputs: LossInputs,
    hidden: Tensor,
    vectors: Tensor,
    bias: Tensor,
) -> Tensor:
    """Computes a loss over the true items and sampled negatives.

    Args:
        kind: `sampled` or `gbce`.
        num_items: items of the catalogue.
        inputs: a batch with negatives.
        hidden: [M, D] output of the network at the targets.
        vectors: [M + S, D] vectors of the true items, then of the negatives.
        bias: [M + S] biases in the same order.

    Returns:
        Mean over the targets, float32; 0 without targets.
    """
    assert inputs.negatives is not None
    assert inputs.log_expected is not None
    count = hidden.shape[0]
    if not count:
        return (hidden.sum() + 0 * (vectors.sum() + bias.sum())).to(torch.float32)
    true = (hidden * vectors[:count]).sum(1) + bias[:count]
    others = ops.linear(hidden, vectors[count:], bias[count:])
    if kind == "gbce":
        return generalised_bce(true, others, inputs.labels, inputs.negatives, num_items)
    # The true item is always a candidate: it was "drawn" with probability one.
    certain = torch.zeros_like(true, dtype=torch.float32)
    return sampled_softmax(
        true, others, inputs.labels, inputs.negatives, certain, inputs.log_expected
    )


class LossNetwork(nn.Module):
    """A network and its loss.

    Args:
        model: the network.
        kind: softmax over all items (`full`), over sampled ones (`sampled`), or `gbce`.
        loss_scale: factor of the loss in backward.
        score_offset: [I] float32 added to the scores in training alone, so that the network learns
            what the offset does not say (logit adjustment; Menon et al., ICLR 2021); None adds
            nothing.

    Attributes:
        compiled: compiled layers of the network; None runs them as they are.
    """

    def __init__(
        self,
        model: Bert4Rec,
        kind: Loss,
        loss_scale: float = 1.0,
        score_offset: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.loss_scale = loss_scale
        self._score_offset = score_offset
        self.compiled: CompiledNetwork | None = None

    @property
    def trained_bias(self) -> Tensor:
        """[I] biases of the items, with any offset of training."""
        bias: Tensor = self.model.head.bias
        return bias if self._score_offset is None else bias + self._score_offset

    def hidden(self, inputs: LossInputs, vectors: Tensor | None = None) -> Tensor:
        """Computes the vectors at the targets, by any compiled layers.

        Args:
            inputs: a batch.
            vectors: [N, D] embeddings of its items, if they were looked up already.

        Returns:
            [M, D].
        """
        model = self.model
        if self.compiled is None:
            hidden: Tensor = model(
                *(inputs.items, inputs.layout, inputs.targets),
                causal=inputs.causal,
                vectors=vectors,
            )
            return hidden
        if vectors is None:
            vectors = model.embedding.lookup(model.embedding.items, inputs.items)
        return self.compiled(inputs.items, vectors, inputs.layout, inputs.targets, inputs.causal)

    def full_loss(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, edge_rows: int = 0
    ) -> Tensor:
        """Computes the loss over all items.

        Args:
            hidden: [M, D] output of the network at the targets.
            weight: [R, D] table with the vectors of the items; R = I + 2 * edge_rows.
            labels: [M] int64 true items, from 1.
            edge_rows: rows at either end of the table that are no items.

        Returns:
            Mean over the targets, a float32 scalar.
        """
        return softmax_cross_entropy(
            *(hidden, weight, self.trained_bias, labels - 1),
            loss_scale=self.loss_scale,
            edge_rows=edge_rows,
        )

    def forward(self, inputs: LossInputs) -> Tensor:
        """Returns the mean loss over the targets, a float32 scalar."""
        model = self.model
        vectors, table = None, None
        scores_with_table = model.head.weight is None and model.head.temperature is None
        if inputs.negatives is None and scores_with_table:
            vectors, table = lookup_before_head(model.embedding.items, inputs.items)
        hidden = self.hidden(inputs, vectors)
        if inputs.negatives is None:
            if table is None:
                return self.full_loss(hidden, model.item_vectors(), inputs.labels)
            # The rows at the edges are padding and the mask item.
            return self.full_loss(hidden, table, inputs.labels, edge_rows=1)
        vectors, bias = model.vectors_of(torch.cat([inputs.labels, inputs.negatives]))
        return sampled_loss(self.kind, model.num_items, inputs, hidden, vectors, bias)
