# SPDX-License-Identifier: Apache-2.0
"""One optimizer step of BERT4Rec."""

import torch
from torch import Tensor, nn

from bert4rec.config import ObjectiveConfig, OptimizerConfig
from bert4rec.data.batches import TrainBatch
from bert4rec.data.masking import MaskedBatch, MaskingRule, mask_tokens
from bert4rec.model.network import Bert4Rec
from bert4rec.nn.block import Targets
from bert4rec.nn.layout import SequenceLayout
from bert4rec.nn.softmax_loss import softmax_cross_entropy
from training.dense_optimizer import build_dense_optimizer
from training.precision import Precision


def masking_rule(config: ObjectiveConfig) -> MaskingRule:
    """Returns how a config masks tokens."""
    return MaskingRule(
        mask_prob=config.mask_prob,
        mask_last_prob=config.mask_last_prob,
        mask_replace=config.mask_replace,
        random_replace=config.random_replace,
    )


def next_item_batch(items: Tensor, layout: SequenceLayout) -> MaskedBatch:
    """Asks for the item after each token but the last of a sequence.

    Args:
        items: [N] int64.
        layout: of the items; a sequence of one item asks for nothing.

    Returns:
        The items as they are, with N - B targets.
    """
    lengths = layout.lengths() - 1
    target_layout = SequenceLayout.of_lengths(
        lengths, layout.max_length - 1, layout.num_tokens - layout.batch_size
    )
    places = target_layout.place_of_token()
    index = layout.offsets[target_layout.sequence_of_token()] + places
    return MaskedBatch(items, layout, Targets(index, target_layout, places), items[index + 1])


class Bert4RecTrainStep:
    """Forward, backward and update on one batch.

    Args:
        model: what to train.
        network: what to call for the forward pass: the model, or a wrapper of it that talks to
            other processes.
        objective: what is asked.
        optimizer: rule and rates.
        precision: of the forward pass.

    Attributes:
        optimizer: of all parameters.
    """

    def __init__(
        self,
        model: Bert4Rec,
        network: nn.Module,
        objective: ObjectiveConfig,
        optimizer: OptimizerConfig,
        precision: Precision,
    ) -> None:
        self._model = model
        self._network = network
        self._rule = masking_rule(objective)
        self._precision = precision
        self._clip_norm = optimizer.clip_norm
        self._parameters = list(model.parameters())
        self.optimizer = build_dense_optimizer("adam", self._parameters, optimizer.weight_decay)
        device = self._parameters[0].device
        self._lr = torch.zeros((), device=device)
        self._generator = torch.Generator(device)

    def __call__(self, batch: TrainBatch, lr: float) -> Tensor:
        """Trains on a batch.

        Args:
            batch: on the model's device.
            lr: rate of this step.

        Returns:
            The loss before the update, a float32 scalar on the device.
        """
        self._lr.fill_(lr)
        self._model.train()
        for parameter in self._parameters:
            parameter.grad = None
        # Dropout draws from the global generator: reseeded, a resumed run draws the same.
        torch.manual_seed(batch.seed)
        self._generator.manual_seed(batch.seed)
        if batch.causal:
            asked = next_item_batch(batch.items, batch.layout)
        else:
            asked = mask_tokens(
                batch.items,
                batch.layout,
                batch.mask_counts,
                batch.last_only,
                self._rule,
                self._model.num_items,
                self._generator,
            )
        with self._precision.autocast():
            queries = self._network(asked.items, asked.layout, asked.targets, causal=batch.causal)
            loss = softmax_cross_entropy(
                queries, self._model.item_vectors(), self._model.head.bias, asked.labels - 1
            )
        torch.autograd.backward(loss)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm, foreach=True)
        self.optimizer.step(self._lr, 1.0, None)
        return loss.detach()
