# SPDX-License-Identifier: Apache-2.0
"""The network with its loss, which a training step calls once per batch."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from bert4rec.model.compiled import CompiledNetwork
from bert4rec.model.network import Bert4Rec
from bert4rec.nn.items import lookup_before_head
from bert4rec.nn.softmax_loss import generalised_bce, sampled_softmax, softmax_cross_entropy
from bert4rec.nn.targets import LabelledBatch
from cuda_ext import ops

Loss = Literal["full", "sampled", "gbce"]


def sampled_loss(
    kind: Loss,
    num_items: int,
    inputs: LabelledBatch,
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
    count = hidden.shape[0]
    if not count:
        return (hidden.sum() + 0 * (vectors.sum() + bias.sum())).to(torch.float32)
    true = (hidden * vectors[:count]).sum(1) + bias[:count]
    others = ops.linear(hidden, vectors[count:], bias[count:])
    scored = (true, others, inputs.labels, inputs.negatives)
    if kind == "gbce":
        return generalised_bce(*scored, num_items, weights=inputs.weights)
    log_expected = math.log(len(inputs.negatives) / num_items)
    return sampled_softmax(*scored, log_expected, weights=inputs.weights)


class LossNetwork(nn.Module):
    """A network and its loss.

    Args:
        model: the network.
        kind: softmax over all items (`full`), over sampled ones (`sampled`), or `gbce`.
        loss_scale: factor of the loss in backward.
        score_offset: [I] float32 added to the scores only in training, so that the network learns
            what the offset does not explain (logit adjustment; Menon et al., ICLR 2021); None adds
            nothing.

    Attributes:
        compiled: compiled layers of the network; None runs them uncompiled.
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

    def loss_of(
        self,
        inputs: LabelledBatch,
        vectors: Tensor,
        candidates: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Computes the loss from vectors that were already looked up.

        Args:
            inputs: a batch.
            vectors: [N, D] embeddings of its items.
            candidates: ([M + S, D] vectors, [M + S] biases) of its candidates; None with the full
                softmax.

        Returns:
            Mean over the targets, a float32 scalar.
        """
        hidden, model = self.hidden(inputs, vectors), self.model
        if candidates is None:
            return self.full_loss(inputs, hidden, model.item_vectors())
        return sampled_loss(self.kind, model.num_items, inputs, hidden, *candidates)

    def hidden(self, inputs: LabelledBatch, vectors: Tensor) -> Tensor:
        """Computes the [M, D] vectors at the targets, with `compiled` if it is set."""
        model = self.model
        if self.compiled is None:
            where = (inputs.items, inputs.layout, inputs.targets)
            hidden: Tensor = model(*where, causal=inputs.causal, vectors=vectors)
            return hidden
        return self.compiled(inputs.items, vectors, inputs.layout, inputs.targets, inputs.causal)

    def full_loss(
        self, inputs: LabelledBatch, hidden: Tensor, weight: Tensor, edge_rows: int = 0
    ) -> Tensor:
        """Computes the mean loss over all items, a float32 scalar; see `softmax_cross_entropy`."""
        return softmax_cross_entropy(
            *(hidden, weight, self.trained_bias, inputs.labels - 1),
            loss_scale=self.loss_scale,
            edge_rows=edge_rows,
            weights=inputs.weights,
        )

    def forward(self, inputs: LabelledBatch) -> Tensor:
        """Returns the mean loss over the targets, a float32 scalar."""
        model, candidates = self.model, inputs.candidates
        scores_with_table = model.head.weight is None and model.head.temperature is None
        if candidates is None and scores_with_table:
            vectors, table = lookup_before_head(model.embedding.items, inputs.items)
            # The first and the last row are padding and the mask item.
            return self.full_loss(inputs, self.hidden(inputs, vectors), table, edge_rows=1)
        vectors = model.embedding.lookup(model.embedding.items, inputs.items)
        of_candidates = None if candidates is None else model.vectors_of(candidates)
        return self.loss_of(inputs, vectors, of_candidates)
