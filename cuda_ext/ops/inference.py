# SPDX-License-Identifier: Apache-2.0
"""Runs MLPs and whole DLRMs on up to some hundred samples, without gradients."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.interaction import fits_kernels
from cuda_ext.ops.registration import fake_kernel, is_compiled_for, kernels
from cuda_ext.pages import use_huge_pages
from cuda_ext.reference import MLP_PANEL


@dataclasses.dataclass(frozen=True, slots=True)
class PackedMlp:
    """The layers of an MLP in contiguous memory.

    Attributes:
        weights: [sum of inputs x padded outputs], layer by layer, in panels of 32 outputs; see
            `reference.mlp_forward`.
        biases: [sum of padded outputs].
        sizes: width of the input, then outputs of each layer.
    """

    weights: Tensor
    biases: Tensor
    sizes: tuple[int, ...]


def pack_mlp(
    weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype = torch.float32
) -> PackedMlp:
    """Copies the layers of an MLP for `mlp_forward`.

    Args:
        weights: [outputs, inputs] of each layer.
        biases: [outputs] of each layer.
        dtype: type of the packed weights, float32 or bfloat16; float64 weights stay float64.
    """
    dtype = torch.float64 if weights[0].dtype == torch.float64 else dtype
    panels = [
        torch.nn.functional.pad(w.detach().to(dtype), (0, 0, 0, -w.shape[0] % MLP_PANEL))
        .view(-1, MLP_PANEL, w.shape[1])
        .transpose(1, 2)
        for w in weights
    ]
    bias_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    count = sum(panel.numel() for panel in panels)
    packed = use_huge_pages(torch.empty(count, dtype=dtype, device=weights[0].device))
    torch.cat([panel.reshape(-1) for panel in panels], out=packed)
    return PackedMlp(
        packed,
        torch.cat(
            [
                torch.nn.functional.pad(b.detach().to(bias_dtype), (0, -len(b) % MLP_PANEL))
                for b in biases
            ]
        ),
        (weights[0].shape[1], *(w.shape[0] for w in weights)),
    )


def mlp_forward(x: Tensor, packed: PackedMlp, *, final_relu: bool) -> Tensor:
    """Runs an MLP, fast for up to some hundred samples on a CPU, without gradients.

    See `reference.mlp_forward`.

    Raises:
        RuntimeError: sizes or types do not match.
    """
    if x.device.type != "cpu" or not is_compiled_for(x):
        return reference.mlp_forward(
            x, packed.weights, packed.biases, packed.sizes, final_relu=final_relu
        )
    output: Tensor = kernels.mlp_forward(
        x.contiguous(), packed.weights, packed.biases, packed.sizes, final_relu
    )
    return output


@fake_kernel("mlp_forward")
def _(
    input: Tensor, weights: Tensor, biases: Tensor, sizes: Sequence[int], final_relu: bool
) -> Tensor:
    return input.new_empty(input.shape[0], sizes[-1])


@dataclasses.dataclass(frozen=True, slots=True)
class JointTable:
    """The embedding tables of all features, one after the other.

    Attributes:
        rows: [R, D] float32 or bfloat16.
        offsets: [F + 1] int64: first row of each feature, then R.
        hash_indices: take ids modulo the size of their table.
    """

    rows: Tensor
    offsets: Tensor
    hash_indices: bool


def dlrm_forward(
    numerical: Tensor, ids: Tensor, table: JointTable, bottom: PackedMlp, top: PackedMlp
) -> Tensor:
    """Runs a DLRM with dot interaction, fast for up to some hundred samples, without gradients.

    See `reference.dlrm_forward`. The bottom MLP maps M columns to D, the top MLP the columns of the
    interaction to one: [B] logits.

    Raises:
        RuntimeError, ValueError: an id is outside its table; names feature, sample and value.
    """
    compiled = numerical.device.type == "cpu" and is_compiled_for(numerical)
    if not compiled or not fits_kernels(ids.shape[1] + 1, table.rows.shape[1]):
        return reference.dlrm_forward(
            *(numerical, ids, table.offsets, table.hash_indices, table.rows),
            *(bottom.weights, bottom.biases, bottom.sizes),
            *(top.weights, top.biases, top.sizes),
        )
    logits: Tensor = kernels.dlrm_forward(
        *(numerical.contiguous(), ids.contiguous(), table.offsets, table.hash_indices, table.rows),
        *(bottom.weights, bottom.biases, bottom.sizes, top.weights, top.biases, top.sizes),
    )
    return logits


@fake_kernel("dlrm_forward")
def _(numerical: Tensor, *others: Any) -> Tensor:
    return numerical.new_empty(numerical.shape[0])
