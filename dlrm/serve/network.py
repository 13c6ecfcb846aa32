# SPDX-License-Identifier: Apache-2.0
"""The deployed click model: feature tensors in, click probabilities out."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dlrm.config import EmbeddingStorage, ModelConfig
from dlrm.model.clicks import ClickModel
from dlrm.model.network import Dlrm
from dlrm.nn.bags import BaggedEmbedding, Bags
from dlrm.nn.embedding import Embeddings, JointFusedEmbedding
from dlrm.nn.frozen_embedding import FrozenEmbedding, one_table, quantize_rows
from dlrm.nn.mlp import Mlp
from recsys.errors import show_names
from recsys.serve.manifest import (
    DEPLOYMENT_FILE,
    WEIGHTS_FILE,
    DeploymentError,
    OutOfRange,
    Quantize,
)

TABLE, SCALE = "embeddings.table", "embeddings.scale"


class ClickNetwork(nn.Module):
    """A click model that handles ids outside their tables.

    Args:
        model: the network; if it hashes ids, ids need no check.
        out_of_range: result for a sample with an id outside its table. `error`: NaN, because an
            exported graph cannot raise. `zero`: the id counts as 0, the unknown value.
        widths: greatest number of ids of each feature, lists last; None without lists.
    """

    def __init__(
        self,
        model: ClickModel[Any],
        out_of_range: OutOfRange,
        widths: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        limits = model.id_limits
        self._hashes = limits is None
        self._marks = out_of_range == "error" and bool(limits)
        self._sizes: Tensor
        sizes = torch.tensor(limits or ())
        self._widths = widths or ()
        if widths is not None and limits is not None:
            sizes = sizes.repeat_interleave(torch.tensor(widths))
        self.register_buffer("_sizes", sizes)

    def forward(
        self, numerical: Tensor, categorical: Tensor, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predicts clicks.

        Args:
            numerical: [B, M] float32, transformed as in the dataset.
            categorical: [B, F] int64 ids, or [B, S] with lists, see `Bags.from_slots`.
            scale: [B, slots of lists] float32 factors of the ids of lists; None without lists.

        Returns:
            ([B, 1] probability, [B, 1] logit), float32.
        """
        if self._hashes:
            logit = self.model(numerical, self._ids(categorical, scale))
        else:
            outside = (categorical < 0) | (categorical >= self._sizes)
            logit = self.model(numerical, self._ids(categorical.masked_fill(outside, 0), scale))
            if self._marks:
                logit = logit.masked_fill(outside.any(dim=1), float("nan"))
        logit = logit.to(torch.float32).unsqueeze(1)
        return torch.sigmoid(logit), logit

    def _ids(self, categorical: Tensor, scale: Tensor | None) -> Tensor | Bags:
        return categorical if scale is None else Bags.from_slots(categorical, scale, self._widths)


class CategoricalNetwork(nn.Module):
    """A click network without numerical features; it takes only ids."""

    def __init__(self, network: ClickNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, categorical: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predicts clicks; see `ClickNetwork`."""
        # len() would become a constant in the exported graph.
        numerical = categorical.new_empty((categorical.shape[0], 0), dtype=torch.float32)
        probability, logit = self.network(numerical, categorical, scale)
        return probability, logit


class NumericalNetwork(nn.Module):
    """A click network without categorical features; it takes only numbers."""

    def __init__(self, network: ClickNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, numerical: Tensor) -> tuple[Tensor, Tensor]:
        """Predicts clicks; see `ClickNetwork`."""
        categorical = numerical.new_empty((numerical.shape[0], 0), dtype=torch.int64)
        probability, logit = self.network(numerical, categorical)
        return probability, logit


@torch.no_grad()
def without_batch_norm(model: Dlrm) -> dict[str, Tensor]:
    """Returns the MLPs' parameters, with batch normalisation folded into the layers.

    In evaluation, a norm maps each output x of its layer to (x - mean) / sqrt(variance + eps) *
    weight + bias. This is linear, so a layer with other weights computes the same.
    """
    weights = {name: value.detach().contiguous() for name, value in model.mlp_state().items()}
    for name, part in model.dense_parts().items():
        for number, norm in enumerate(part.norms if isinstance(part, Mlp) else ()):
            for key in norm.state_dict():
                del weights[f"{name}.norms.{number}.{key}"]
            layer = f"{name}.layers.{number}"
            mean, variance, factor, bias = (
                getattr(norm, key).double()
                for key in ("running_mean", "running_var", "weight", "bias")
            )
            factor = factor / (variance + norm.eps).sqrt()
            scaled = weights[f"{layer}.weight"].double() * factor.unsqueeze(1)
            shifted = (weights[f"{layer}.bias"].double() - mean) * factor + bias
            weights[f"{layer}.weight"] = scaled.float()
            weights[f"{layer}.bias"] = shifted.float()
    return weights


@torch.no_grad()
def weights_to_deploy(model: Dlrm, quantize: Quantize) -> dict[str, Tensor]:
    """Returns the deployed tensors: one joint table and the MLPs' parameters.

    Batch normalisation is folded into the layers, see `without_batch_norm`. `int8` stores the table
    in 8 bits with one scale per row.
    """
    table = one_table(model.embeddings)
    weights = without_batch_norm(model)
    if quantize == "int8":
        weights[TABLE], weights[SCALE] = quantize_rows(table)
    else:
        weights[TABLE] = table.detach().contiguous()
    return weights


@torch.no_grad()
def build_model(
    config: ModelConfig,
    table_sizes: tuple[int, ...],
    weights: Mapping[str, Tensor],
    *,
    portable: bool,
    has_lists: bool = False,
) -> Dlrm:
    """Builds a DLRM from deployed weights; for exporters (`portable`), in plain PyTorch.

    Raises:
        DeploymentError: the weights belong to another model.
    """
    table, scale = weights[TABLE], weights.get(SCALE)
    embeddings: Embeddings[Any]
    if portable or scale is not None:
        embeddings = FrozenEmbedding(table, scale, table_sizes, config.hash_indices)
    else:
        storage: EmbeddingStorage = "bfloat16" if table.dtype == torch.bfloat16 else "float32"
        kind = BaggedEmbedding if has_lists else JointFusedEmbedding
        joint = kind(table_sizes, config.row_dim, config.hash_indices, storage)
        joint.weight = nn.Parameter(table, requires_grad=False)
        embeddings = joint
    if portable and config.interaction_op == "cuda_dot":
        config = dataclasses.replace(config, interaction_op="dot")
    model = Dlrm(config, table_sizes, embeddings)
    copy_weights(model.mlp_state(), {k: w for k, w in weights.items() if k not in (TABLE, SCALE)})
    model.eval().requires_grad_(False)
    return model


def copy_weights(state: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copies deployed weights into the tensors of a model.

    Raises:
        DeploymentError: their names or shapes differ from those of the model.
    """
    differing = sorted(
        name
        for name in state.keys() | weights.keys()
        if name not in state or name not in weights or state[name].shape != weights[name].shape
    )
    if differing:
        raise DeploymentError(
            f"{WEIGHTS_FILE} and the model of {DEPLOYMENT_FILE} differ in {show_names(differing)}; "
            "deploy the checkpoint again"
        )
    for name, value in state.items():
        value.copy_(weights[name])


def network_of(
    model: ClickModel[Any],
    out_of_range: OutOfRange,
    widths: Sequence[int] | None,
    *,
    has_numbers: bool,
    has_ids: bool,
) -> nn.Module:
    """Returns the network of a deployed model; its inputs are the features of the model.

    For `out_of_range` and `widths`, see `ClickNetwork`.
    """
    network = ClickNetwork(model, out_of_range, widths)
    if not has_numbers:
        return CategoricalNetwork(network)
    return network if has_ids else NumericalNetwork(network)
