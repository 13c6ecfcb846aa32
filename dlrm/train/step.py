# SPDX-License-Identifier: Apache-2.0
"""The training step of DLRM."""

from typing import Generic, Protocol

import torch
from torch import Tensor

from cuda_ext import ops
from dlrm.config import OptimizerConfig
from dlrm.data.batch import Batch, LookupsT_contra, mixed_seed
from dlrm.model.network import DlrmNetwork, loss_in_shards, sum_of_losses
from dlrm.nn.embedding import LookupsT
from recsys.train.optimizers.dense import build_dense_optimizer, dense_rule_beside
from recsys.train.optimizers.precision import Precision
from recsys.train.optimizers.rows import RowGradients, RowwiseOptimizer


class Gradients(Protocol[LookupsT_contra]):
    """Loss and dense gradients of a batch, over one or several ranks."""

    @property
    def side_stream(self) -> ops.SideStream | None:
        """Stream that computes the gradients of weights until `reduce`; None for the current."""
        ...

    def loss(self, logits: Tensor, batch: Batch[LookupsT_contra]) -> Tensor:
        """Returns this rank's term of the mean loss, on which backward starts.

        For [B, N] logits of N networks, it is the sum of their losses.
        """
        ...

    def sum_loss(self, loss: Tensor) -> Tensor:
        """Sums the losses of all ranks; the result is valid after `reduce`."""
        ...

    def reduce(self) -> None:
        """Completes the dense gradients over all ranks; call it once a step, after backward."""
        ...

    def overflow_anywhere(self, overflow: Tensor | None) -> Tensor | None:
        """Combines the ranks' overflow flags: a scalar bool tensor."""
        ...


class LocalGradients:
    """Loss and gradients of a single process.

    Args:
        device: device of the model.
        num_shards: see `DlrmNetwork.add_in_shards`.
    """

    def __init__(self, device: torch.device, num_shards: int = 0) -> None:
        self._num_shards = num_shards
        self.side_stream = ops.SideStream(device) if device.type == "cuda" else None

    def loss(self, logits: Tensor, batch: Batch[object]) -> Tensor:
        """Returns the mean loss of the batch."""
        if self._num_shards:
            return loss_in_shards(logits, batch.label, len(logits), self._num_shards)
        return sum_of_losses(logits, batch.label)

    def sum_loss(self, loss: Tensor) -> Tensor:
        """Returns the loss unchanged."""
        return loss

    def reduce(self) -> None:
        """Waits for the gradients of weights; there are no other ranks."""
        if self.side_stream is not None:
            self.side_stream.join()

    def overflow_anywhere(self, overflow: Tensor | None) -> Tensor | None:
        """Returns the flag unchanged."""
        return overflow


def seed_draws(device: torch.device, seed: int, *numbers: int) -> None:
    """Seeds a device's generator from a run's seed and numbers, see `mixed_seed`.

    Until CUDA is initialised, `torch.manual_seed` takes half a millisecond: it saves the stack.
    """
    seed = mixed_seed(seed, *numbers)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class DlrmTrainStep(Generic[LookupsT]):
    """Forward pass, backward pass and update on one batch.

    Args:
        model: the network to train.
        config: optimizers and learning rates.
        precision: autocast of the forward pass, and the loss scale.
        gradients: loss and gradients of all ranks; None for a single process.
        seed: seed of this rank's dropout. It is mixed with the number of the step, so that a
            resumed run draws the same numbers as an uninterrupted one.

    Attributes:
        steps: number of updates since the start of the run.
        mlp_optimizer: optimizer of all dense parameters.
        embedding_optimizer: optimizer of the tables; None without tables.
    """

    def __init__(
        self,
        model: DlrmNetwork[LookupsT],
        config: OptimizerConfig,
        precision: Precision,
        gradients: Gradients[LookupsT] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self._model = model
        self._seed = seed
        self.steps = 0
        self._precision = precision
        parameters = model.mlp_parameters()
        self._gradients: Gradients[LookupsT] = gradients or LocalGradients(
            parameters[0].device, model.num_shards
        )
        self._mlp_parameters = parameters
        self._num_networks = len(model.networks)
        self.mlp_optimizer = build_dense_optimizer(dense_rule_beside(config.optimizer), parameters)
        model.embeddings.trainable = bool(model.embeddings.table_sizes)
        model.embeddings.finds_overflow = precision.loss_scale != 1.0
        files = model.embeddings.files
        self.embedding_optimizer = (
            RowwiseOptimizer(
                model.embeddings,
                config.optimizer,
                config.embedding_weight_decay,
                precision.loss_scale,
                l2=config.embedding_l2,
                allocate=None if files is None else files.allocate,
            )
            if model.embeddings.trainable
            else None
        )
        self._lr = torch.zeros((), device=parameters[0].device)

    def __call__(self, batch: Batch[LookupsT], lr: float) -> Tensor:
        """Trains on a batch.

        Args:
            batch: samples on the model's device.
            lr: learning rate of this step.

        Returns:
            Scalar float32 loss before the update, on the device.
        """
        self.begin(lr)
        return self.update(batch)

    def begin(self, lr: float) -> None:
        """Sets learning rate and dropout of the next update, on the device."""
        self.steps += 1
        if self._model.top_mlp.dropout:
            seed_draws(self._lr.device, self._seed, self.steps)
        self._lr.fill_(lr)

    def update(self, batch: Batch[LookupsT]) -> Tensor:
        """Trains on a batch without waiting for the device; returns the loss before the update."""
        loss = self._gradients.sum_loss(self._backward(batch))
        scale = self._precision.loss_scale
        row_gradients = self.embedding_optimizer.gradients() if self.embedding_optimizer else []
        overflow: Tensor | None = None
        if scale != 1.0:
            self._gradients.reduce()
            overflow = self._find_overflow(row_gradients)
        if self.embedding_optimizer is not None:
            # Without a loss scale, this overlaps with `reduce`.
            self.embedding_optimizer.step(row_gradients, self._lr, overflow)
        if scale == 1.0:
            self._gradients.reduce()
        self.mlp_optimizer.step(self._lr, scale, overflow)
        return loss if self._num_networks == 1 else loss / self._num_networks

    def _find_overflow(self, row_gradients: list[RowGradients]) -> Tensor | None:
        gradients = [p.grad for p in self._mlp_parameters if p.grad is not None]
        gradients += [g.gradients for g in row_gradients if g.overflow is None]
        flags = [g.overflow for g in row_gradients if g.overflow is not None]
        own = self._precision.find_overflow([g for g in gradients if g.numel()], flags)
        return self._gradients.overflow_anywhere(own)

    def _backward(self, batch: Batch[LookupsT]) -> Tensor:
        """Computes the gradients of a batch; returns this rank's loss."""
        self._model.train()
        for parameter in self._mlp_parameters:
            parameter.grad = None
        with self._precision.autocast(), ops.weight_gradients_on(self._gradients.side_stream):
            logits = self._model(batch.numerical, batch.ids)
        loss = self._gradients.loss(logits.to(torch.float32), batch)
        scale = self._precision.loss_scale
        torch.autograd.backward(loss if scale == 1.0 else loss * scale)
        return loss.detach()
