# SPDX-License-Identifier: Apache-2.0
"""One optimizer step of DLRM, eager or replayed from a CUDA graph."""

import torch
from torch import Tensor

from cuda_ext import library
from dlrm.config import OptimizerConfig
from dlrm.data.batch import Batch
from dlrm.model.network import Dlrm
from recsys.train.dense_optimizer import build_dense_optimizer
from recsys.train.precision import Precision
from recsys.train.row_optimizer import RowwiseOptimizer


class DlrmTrainStep:
    """Forward, backward and update on one batch.

    Args:
        model: what to train.
        config: optimizers and rates.
        precision: of the forward pass; its loss scale covers MLPs and embeddings alike.
        freeze_mlps: leave the MLPs as they are.
        freeze_embeddings: leave the tables as they are.

    Attributes:
        mlp_optimizer: of all dense parameters; None where they are frozen.
        embedding_optimizer: of the tables; None where they are frozen or there are none.
    """

    def __init__(
        self,
        model: Dlrm,
        config: OptimizerConfig,
        precision: Precision,
        *,
        freeze_mlps: bool = False,
        freeze_embeddings: bool = False,
    ) -> None:
        self._model = model
        self._precision = precision
        parameters = model.mlp_parameters()
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
                config.embedding_weight_decay,
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

    def __call__(self, batch: Batch, lr: float) -> Tensor:
        """Trains on a batch.

        Args:
            batch: on the model's device.
            lr: rate of this step.

        Returns:
            The loss before the update, a scalar float32 on the device.
        """
        self.set_lr(lr)
        return self.update(batch)

    def set_lr(self, lr: float) -> None:
        """Puts the rate of the next update on the device."""
        self._lr.fill_(lr)
        self._embedding_lr.fill_(lr * self._embedding_lr_ratio)

    def update(self, batch: Batch) -> Tensor:
        """Trains on a batch with the rate that is set; everything stays on the device."""
        loss = self._backward(batch)
        scale = self._precision.loss_scale
        found = self.embedding_optimizer.gradients() if self.embedding_optimizer else []
        gradients = [p.grad for p in self._mlp_parameters if p.grad is not None]
        overflow = self._precision.find_overflow(gradients + [g.gradients for g in found])
        if self.mlp_optimizer is not None:
            self.mlp_optimizer.step(self._lr, scale, overflow)
        if self.embedding_optimizer is not None:
            self.embedding_optimizer.step(found, self._embedding_lr, overflow)
        return loss

    def _backward(self, batch: Batch) -> Tensor:
        """Leaves the gradients of a batch; returns its loss."""
        self._model.train()
        for parameter in self._mlp_parameters:
            parameter.grad = None
        with self._precision.autocast():
            logits = self._model(batch.numerical, batch.ids)
        loss = self._loss(logits.to(torch.float32), batch)
        scale = self._precision.loss_scale
        torch.autograd.backward(loss if scale == 1.0 else loss * scale)
        return loss.detach()

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.label)


class GraphedTrainStep:
    """The same step, captured once in a CUDA graph and replayed: one launch instead of dozens.

    Only steps whose kernels have fixed shapes can be captured, see `check_graphable`. All batches
    must have the shape of the first one.

    Args:
        step: what to capture.
    """

    _WARMUP_STEPS = 3

    def __init__(self, step: DlrmTrainStep) -> None:
        self._step = step
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None
        self._loss: Tensor | None = None

    def __call__(self, batch: Batch, lr: float) -> Tensor:
        """Trains on a batch and returns its loss, a scalar on the device."""
        self._step.set_lr(lr)
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

    def _capture(self, batch: Batch) -> None:
        self._batch = Batch(batch.numerical.clone(), batch.ids.clone(), batch.label.clone())
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._step.update(self._batch)


def check_graphable(embedding_type: str, device: torch.device) -> None:
    """Refuses --cuda_graphs where the step cannot be captured.

    Raises:
        ValueError: not a CUDA device, or an update that needs the number of distinct ids.
    """
    if device.type != "cuda":
        raise ValueError(f"--cuda_graphs needs a CUDA device, this run uses {device.type}")
    if embedding_type != "joint_fused":
        raise ValueError(
            "--cuda_graphs needs --embedding_type joint_fused: sparse gradients cannot be captured"
        )
    if library.path_of("cuda") != "compiled":
        raise ValueError(
            "--cuda_graphs needs the extension's CUDA kernels: the updates in plain PyTorch ask "
            "how many ids of a batch differ, which a captured graph cannot. "
            "`python -m cuda_ext` tells why they are missing"
        )
