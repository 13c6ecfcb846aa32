# SPDX-License-Identifier: Apache-2.0
"""A whole DLRM on few samples, without gradients."""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from cuda_ext import reference
from cuda_ext.ops.interaction import fits_kernels
from cuda_ext.ops.mlp import PackedMlp
from cuda_ext.ops.registration import fake_kernel, is_compiled_for, kernels


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
    """Runs a DLRM with dot interaction, fast for few samples.

    See `reference.dlrm_forward`.

    Args:
        numerical: [B, M] float32; no gradient.
        ids: [B, F] int8 to int64.
        table: the embedding tables.
        bottom: bottom MLP, from M to D columns.
        top: top MLP, from the interaction's columns to one.

    Returns:
        [B, 1] logits.

    Raises:
        RuntimeError, ValueError: an id outside its table; names feature, sample and value.
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
def _(
    numerical: Tensor,
    ids: Tensor,
    offsets: Tensor,
    hash_indices: bool,
    table: Tensor,
    bottom_weights: Tensor,
    bottom_biases: Tensor,
    bottom_sizes: Sequence[int],
    top_weights: Tensor,
    top_biases: Tensor,
    top_sizes: Sequence[int],
) -> Tensor:
    return numerical.new_empty(numerical.shape[0], top_sizes[-1])
