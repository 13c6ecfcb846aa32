# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of what the compiled ops return, for tracing without data."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cuda_ext import reference


def _dot_interaction(
    features: Tensor,
    bottom: Tensor | None,
    self_interaction: bool,
    allow_tf32: bool,
) -> Tensor:
    vectors = features.shape[1] + (bottom is not None)
    width = reference.interaction_width(vectors, features.shape[2], self_interaction)
    return features.new_empty(features.shape[0], width)


def _dot_interaction_backward(
    gradient: Tensor,
    features: Tensor,
    bottom: Tensor | None,
    self_interaction: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor]:
    batch = features.shape[0] if bottom is not None else 0
    return features.new_empty(features.shape), features.new_empty(batch, features.shape[2])


def _gather_dot_interaction(
    table: Tensor,
    rows: Tensor,
    bottom: Tensor,
    anchor: Tensor | None,
    self_interaction: bool,
    allow_tf32: bool,
) -> Tensor:
    width = reference.interaction_width(rows.shape[1] + 1, table.shape[1], self_interaction)
    return bottom.new_empty(rows.shape[0], width)


def _gather_dot_interaction_backward(
    gradient: Tensor,
    table: Tensor,
    rows: Tensor,
    bottom: Tensor,
    self_interaction: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor]:
    return bottom.new_empty(*rows.shape, table.shape[1]), bottom.new_empty(bottom.shape)


def _joint_rows(
    ids: Tensor,
    offsets: Tensor,
    bag_offsets: Tensor | None,
    hash_indices: bool,
    dtype: torch.dtype,
) -> Tensor:
    return ids.new_empty(ids.shape, dtype=dtype)


def _joint_rows_reporting(
    ids: Tensor,
    offsets: Tensor,
    bag_offsets: Tensor | None,
    bad: Tensor,
    hash_indices: bool,
    dtype: torch.dtype,
) -> Tensor:
    return ids.new_empty(ids.shape, dtype=dtype)


def _embedding_gather(
    table: Tensor,
    rows: Tensor,
    anchor: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return table.new_empty(*rows.shape, table.shape[1], dtype=dtype)


def _embedding_bag(
    table: Tensor,
    rows: Tensor,
    bag_offsets: Tensor,
    scale: Tensor | None,
    anchor: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return table.new_empty(bag_offsets.shape[0] - 1, table.shape[1], dtype=dtype)


def _embedding_bag_scale_backward(
    gradient: Tensor, table: Tensor, rows: Tensor, source: Tensor
) -> Tensor:
    return table.new_empty(rows.shape[0], dtype=torch.float32)


def _sort_rows(rows: Tensor, num_table_rows: int) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.numel()), rows.new_empty(rows.numel(), dtype=torch.int32)


def _update_rows(*_arguments: object) -> None:
    return None


def _sgd_rows_unsorted(*_arguments: object) -> None:
    return None


FAKE_KERNELS: dict[str, Callable[..., Any]] = {
    "dot_interaction": _dot_interaction,
    "dot_interaction_backward": _dot_interaction_backward,
    "gather_dot_interaction": _gather_dot_interaction,
    "gather_dot_interaction_backward": _gather_dot_interaction_backward,
    "joint_rows": _joint_rows,
    "joint_rows_reporting": _joint_rows_reporting,
    "embedding_gather": _embedding_gather,
    "embedding_bag": _embedding_bag,
    "embedding_bag_scale_backward": _embedding_bag_scale_backward,
    "sort_rows": _sort_rows,
    "update_rows": _update_rows,
    "sgd_rows_unsorted": _sgd_rows_unsorted,
}
