# SPDX-License-Identifier: Apache-2.0
"""The training step of DLRM, eager or replayed from a CUDA graph."""

from typing import Generic, Protocol

import torch
from torch import Tensor

from cuda_ext import library, ops
from dlrm.config import OptimizerConfig
from dlrm.data.batch import Batch, LookupsT_contra
from dlrm.model.network import DlrmNetwork
from dlrm.nn.embedding import LookupsT
from recsys.errors import UserError
from recsys.train.optimizers.dense import Rates, build_dense_optimizer
from recsys.train.optimizers.precision import Precision
from recsys.train.optimizers.rows import RowwiseOptimizer


class Gradients(Protocol[LookupsT_contra]):
    """Loss and dense gradients of a batch, over one or several ranks."""

    @property
    def side_stream(self) -> ops.SideStream | None:
        """Multiplies the gradients of weights, until `reduce`; None for the current stream."""
        ...

    def loss(self, logits: Tensor, batch: Batch[LookupsT_contra]) -> Tensor:
        """Returns this rank's term of the mean loss, the root of backward."""
        ...

    def sum_loss(self, loss: Tensor) -> Tensor:
        """Sums the terms of all ranks; the result is valid after `reduce`."""
        ...

    def reduce(self) -> None:
        """Completes dense gradients, over all ranks; once a step, after backward."""
        ...

    def overflow_anywhere(self, overflow: Tensor | None) -> Tensor | None:
        """Combines the ranks' overflow flags: a scalar bool tensor."""
        ...


class LocalGradients:
    """Loss and gradients of a single process.

    Args:
        device: of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self.side_stream = ops.SideStream(device) if device.type == "cuda" else None

    def loss(self, logits: Tensor, batch: Batch[object]) -> Tensor:
        """Returns the mean loss of the batch."""
        return ops.binary_cross_entropy(logits, batch.label)

    def sum_loss(self, loss: Tensor) -> Tensor:
        """Returns the loss unchanged."""
        return loss

    def reduce(self) -> None:
        """Waits for the gradients of weights: there are no other ranks."""
        if self.side_stream is not None:
            self.side_stream.join()

    def overflow_anywhere(self, overflow: Tensor | None) -> Tensor | None:
        """Returns the flag unchanged."""
        return overflow


class DlrmTrainStep(Generic[LookupsT]):
    """Forward pass, backward pass and update on one batch.

    Args:
        model: the network to train.
        config: optimizers and learning rates.
        precision: autocast of the forward pass, and the loss scale.
        gradients: loss and gradients of all ranks; None for a single process.
        freeze_mlps: do not update the MLPs.
        freeze_embeddings: do not update the tables.

    Attributes:
        mlp_optimizer: optimizer of all dense parameters; None if they are frozen.
        embedding_optimizer: optimizer of the tables; None without trainable tables.
    """

    def __init__(
        self,
        model: DlrmNetwork[LookupsT],
        config: OptimizerConfig,
        precision: Precision,
        gradients: Gradients[LookupsT] | None = None,
        *,
        freeze_mlps: bool = False,
        freeze_embeddings: bool = False,
    ) -> None:
        self._model = model
        self._precision = precision
        parameters = model.mlp_parameters()
        self._gradients: Gradients[LookupsT] = gradients or LocalGradients(parameters[0].device)
        self._mlp_parameters = [] if freeze_mlps else parameters
        for parameter in parameters:
            parameter.requires_grad_(not freeze_mlps)
        self.mlp_optimizer = (
            None
            if freeze_mlps
            else build_dense_optimizer(config.mlp_rule, parameters, config.mlp_weight_decay)
        )
        has_tables = bool(model.embeddings.table_sizes)
        model.embeddings.trainable = has_tables and not freeze_embeddings
        if freeze_embeddings:
            model.embeddings.requires_grad_(False)
        self.embedding_optimizer = (
            RowwiseOptimizer(
                model.embeddings,
                config.embedding_rule,
                Rates(config.embedding_weight_decay),
                precision.loss_scale,
            )
            if model.embeddings.trainable
            else None
        )
        self._embedding_lr_ratio = (
            1.0 if config.embedding_lr is None else config.embedding_lr / config.lr
        )
        device = parameters[0].device
        self._lr = torch.zeros((), device=device)
        self._embedding_lr = torch.zeros((), device=device)

    def __call__(self, batch: Batch[LookupsT], lr: float) -> Tensor:
        """Trains on a batch.

        Args:
            batch: samples on the model's device.
            lr: learning rate of this step.

        Returns:
            Scalar float32 loss before the update, on the device.
        """
        self.set_lr(lr)
        return self.update(batch)

    def set_lr(self, lr: float) -> None:
        """Sets the learning rates of the next update, on the device."""
        self._lr.fill_(lr)
        self._embedding_lr.fill_(lr * self._embedding_lr_ratio)

    def update(self, batch: Batch[LookupsT]) -> Tensor:
        """Trains on a batch; never waits for the device."""
        loss = self._gradients.sum_loss(self._backward(batch))
        scale = self._precision.loss_scale
        row_gradients = self.embedding_optimizer.gradients() if self.embedding_optimizer else []
        overflow: Tensor | None = None
        if scale != 1.0:
            self._gradients.reduce()
            overflow = self._find_overflow([g.gradients for g in row_gradients])
        if self.embedding_optimizer is not None:
            # Without a loss scale this overlaps with `reduce`.
            self.embedding_optimizer.step(row_gradients, self._embedding_lr, overflow)
        if scale == 1.0:
            self._gradients.reduce()
        if self.mlp_optimizer is not None:
            self.mlp_optimizer.step(self._lr, scale, overflow)
        return loss

    def _find_overflow(self, row_gradients: list[Tensor]) -> Tensor | None:
        dense = [p.grad for p in self._mlp_parameters if p.grad is not None]
        gradients = [g for g in dense + row_gradients if g.numel()]
        own = self._precision.find_overflow(gradients) if gradients else None
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


class GraphedTrainStep:
    """A step captured in a CUDA graph, replayed in one launch.

    Shorter batches than the longest, such as the last of an epoch, are not replayed: they take an
    eager step. See `check_graphable`.

    Args:
        step: the step to capture, after three eager steps.
    """

    _WARMUP_STEPS = 3

    def __init__(self, step: DlrmTrainStep[Tensor]) -> None:
        self._step = step
        self._seen = 0
        self._rows = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch[Tensor] | None = None
        self._loss: Tensor | None = None

    def __call__(self, batch: Batch[Tensor], lr: float) -> Tensor:
        """Trains on a batch; returns its scalar loss on the device."""
        self._step.set_lr(lr)
        self._rows = max(self._rows, len(batch))
        if len(batch) < self._rows:
            return self._step.update(batch)
        if self._graph is None:
            self._seen += 1
            if self._seen <= self._WARMUP_STEPS:
                return self._step.update(batch)
            self._capture(batch)
        assert self._graph is not None
        assert self._batch is not None
        assert self._loss is not None
        self._batch.numerical.copy_(batch.numerical)
        self._batch.ids.copy_(batch.ids)
        self._batch.label.copy_(batch.label)
        self._graph.replay()
        return self._loss.clone()

    def _capture(self, batch: Batch[Tensor]) -> None:
        self._batch = Batch(batch.numerical.clone(), batch.ids.clone(), batch.label.clone())
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # In the default mode a reader thread that pins memory meanwhile would break the capture.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss = self._step.update(self._batch)


def check_graphable(embedding_type: str, device: torch.device) -> None:
    """Refuses `cuda_graphs` where the step cannot be captured.

    Raises:
        UserError: the device is not CUDA, or the update has shapes that depend on the ids.
    """
    if device.type != "cuda":
        raise UserError(f"`cuda_graphs` needs a CUDA device, this run uses {device.type}")
    if embedding_type != "joint_fused":
        raise UserError(
            "`cuda_graphs` needs `embedding_type` joint_fused: sparse gradients cannot be captured"
        )
    for family in ("lookup", "update", "graph"):
        if library.path_of("cuda", family) != "compiled":
            raise UserError(
                "`cuda_graphs` needs the extension's CUDA kernels: the updates in plain PyTorch "
                "count the distinct ids of a batch, which a captured graph cannot do. They are "
                f"missing: {library.why_not_compiled('cuda', family)}"
            )
