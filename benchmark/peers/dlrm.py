# SPDX-License-Identifier: Apache-2.0
"""Implementations of one DLRM with equal weights: ours, PyTorch, TorchRec."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmark.peers.torchrec import TorchRecDlrm, has_torchrec
from benchmark.side_by_side import NUM_BATCHES, OURS, id_batches, interaction_flops
from dlrm.config import ModelConfig, OptimizerConfig
from dlrm.data.batch import Batch
from dlrm.distributed.network import DistributedDlrm
from dlrm.model.network import Dlrm
from dlrm.nn.embedding import load_table, read_tables
from dlrm.nn.mlp import Mlp
from dlrm.train.step import DlrmTrainStep
from recsys.train.optimizers.precision import Precision

PYTORCH = "PyTorch"
TORCHREC = "TorchRec"
IN_FLOAT32 = "ours in float32"
LEARNING_RATE = 0.1
LOSS_TOLERANCE = 1e-4
"""Largest relative difference of losses; float32 sums differ in their order."""

BFLOAT16_LOSS_TOLERANCE = 1e-2
"""The same in bfloat16, where implementations round in different places."""

SIZES: dict[str, ModelConfig] = {
    "big": ModelConfig(
        embedding_dim=128,
        bottom_mlp_sizes=(512, 256, 128),
        top_mlp_sizes=(1024, 1024, 512, 256, 1),
        optimized_mlp=False,
    ),
    "small": ModelConfig(
        embedding_dim=16,
        bottom_mlp_sizes=(512, 256, 64, 16),
        top_mlp_sizes=(512, 256, 1),
        optimized_mlp=False,
    ),
}
"""NVIDIA's default sizes, and those that facebookresearch/dlrm trains on Criteo Kaggle."""


class DlrmImplementation(Protocol):
    """An implementation of DLRM, with batches in its own layout."""

    def prepare(self, batch: Batch[Tensor]) -> Any:
        """Converts a batch, untimed, to the layout of the other methods."""
        return batch

    def train(self, batch: Any) -> Tensor:
        """Runs one training step; returns its loss."""

    def begin_inference(self) -> None:
        """Prepares for calls of `logits` alone."""

    def logits(self, batch: Any) -> Tensor:
        """Runs the forward pass; returns the logits [B]."""


class _OurDlrm(DlrmImplementation):
    def __init__(self, model: Dlrm, in_bfloat16: bool) -> None:
        self._model = model
        config = OptimizerConfig(optimizer="sgd", lr=LEARNING_RATE)
        dtype = torch.bfloat16 if in_bfloat16 else None
        self._precision = Precision(device_type="cpu", dtype=dtype)
        self._step = DlrmTrainStep(model, config, self._precision)

    def train(self, batch: Batch[Tensor]) -> Tensor:
        return self._step(batch, LEARNING_RATE)

    def begin_inference(self) -> None:
        self._model.eval()

    def logits(self, batch: Batch[Tensor]) -> Tensor:
        with self._precision.autocast():
            logits: Tensor = self._model(batch.numerical, batch.ids)
        return logits


def _plain_layers(mlp: Mlp) -> nn.Sequential:
    """Returns PyTorch's own layers with the parameters of an MLP."""
    layers = [module for linear in mlp.linears for module in (linear, nn.ReLU())]
    return nn.Sequential(*(layers if mlp.final_relu else layers[:-1]))


class _PlainDlrm(DlrmImplementation):
    """One table per feature with sparse gradients, dot products by bmm, torch.optim.SGD."""

    def __init__(self, model: Dlrm, in_bfloat16: bool) -> None:
        model.run_instead(_plain_layers(model.bottom_mlp), _plain_layers(model.top_mlp))
        self._model, self._in_bfloat16 = model, in_bfloat16
        self._optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def train(self, batch: Batch[Tensor]) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.label)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def begin_inference(self) -> None:
        self._model.eval()

    def logits(self, batch: Batch[Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._in_bfloat16):
            logits: Tensor = self._model(batch.numerical, batch.ids)
        return logits.float()


@torch.no_grad()
def copy_weights(source: Dlrm, target: Dlrm | DistributedDlrm) -> None:
    """Copies a model's weights to another one, or to its shards here."""
    for value, parameter in zip(source.mlp_parameters(), target.mlp_parameters(), strict=True):
        parameter.copy_(value)
    for feature, table in read_tables(source.embeddings).items():
        load_table(target.embeddings, feature, table)


def build_candidates(
    config: ModelConfig, table_sizes: Sequence[int], in_bfloat16: bool = False
) -> dict[str, DlrmImplementation]:
    """Builds every implementation, ours first; TorchRec needs a process group.

    Args:
        config: sizes of the network; embedding type and interaction are replaced.
        in_bfloat16: run all under bfloat16 autocast, and ours in float32 too.
    """
    torch.manual_seed(8)
    fused = dataclasses.replace(config, embedding_type="joint_fused", interaction_op="cuda_dot")
    plain = dataclasses.replace(config, embedding_type="multi_table", interaction_op="dot")
    model = Dlrm(fused, table_sizes)

    def copied(settings: ModelConfig) -> Dlrm:
        other = Dlrm(settings, table_sizes)
        copy_weights(model, other)
        return other

    candidates: dict[str, DlrmImplementation] = {
        OURS: _OurDlrm(model, in_bfloat16),
        PYTORCH: _PlainDlrm(copied(plain), in_bfloat16),
    }
    if in_bfloat16:
        candidates[IN_FLOAT32] = _OurDlrm(copied(fused), in_bfloat16=False)
    if has_torchrec():
        candidates[TORCHREC] = TorchRecDlrm(model, LEARNING_RATE, in_bfloat16=in_bfloat16)
    return candidates


def make_batches(
    config: ModelConfig, table_sizes: Sequence[int], batch_size: int, distribution: str
) -> list[Batch[Tensor]]:
    """Draws random batches, the same on every call."""
    generator = torch.Generator().manual_seed(9)
    return [
        Batch(
            torch.rand(batch_size, config.num_numerical_features, generator=generator),
            ids,
            (torch.rand(batch_size, generator=generator) < 0.5).float(),
        )
        for ids in id_batches(table_sizes, batch_size, distribution, count=NUM_BATCHES)
    ]


def check_training(
    candidates: dict[str, DlrmImplementation],
    batches: Sequence[Batch[Tensor]],
    tolerance: float = LOSS_TOLERANCE,
) -> None:
    """Trains every implementation a step on each batch and compares the losses.

    Raises:
        ArithmeticError: a loss differs from ours.
    """
    losses = {
        name: torch.stack([candidate.train(candidate.prepare(batch)) for batch in batches])
        for name, candidate in candidates.items()
    }
    compare_losses(losses, tolerance)


def compare_losses(losses: Mapping[str, Tensor], tolerance: float = LOSS_TOLERANCE) -> None:
    """Compares the losses of each implementation with ours, relatively.

    Raises:
        ArithmeticError: a loss differs from ours.
    """
    for name, other in losses.items():
        if not torch.allclose(other, losses[OURS], rtol=tolerance, atol=0.0):
            raise ArithmeticError(
                f"losses of the same steps differ: ours {losses[OURS].tolist()}, {name} "
                f"{other.tolist()}"
            )


def forward_flops(config: ModelConfig, num_tables: int) -> float:
    """Returns the FLOPs per sample of the forward pass."""
    vectors = num_tables + 1
    width = config.embedding_dim + vectors * (vectors - 1) // 2
    layers = [
        *itertools.pairwise([config.num_numerical_features, *config.bottom_mlp_sizes]),
        *itertools.pairwise([width, *config.top_mlp_sizes]),
    ]
    products = sum(2.0 * inputs * outputs for inputs, outputs in layers)
    return products + interaction_flops(1, vectors, config.embedding_dim)


def training_flops(config: ModelConfig, num_tables: int) -> float:
    """Returns the FLOPs per sample of a step; inputs need no gradient."""
    first = 2.0 * config.num_numerical_features * config.bottom_mlp_sizes[0]
    return 3 * forward_flops(config, num_tables) - first
