# SPDX-License-Identifier: Apache-2.0
"""Read-only embedding tables in plain PyTorch, for all exporters."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cuda_ext import ops
from dlrm.nn.embedding import Embeddings, Shard, joint_shards
from recsys.train.optimizers.rows import RowGradients

_LARGEST = 127


def quantize_rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes each row to 8 bits with its own scale.

    Args:
        table: [R, D] floating point, finite.

    Returns:
        ([R, D] int8 in [-127, 127], [R] float32 scales). An int8 value times its scale differs
        from the original by at most half a scale.
    """
    values = table.to(torch.float32)
    largest = values.abs().amax(dim=1) if values.shape[1] else values.new_zeros(len(values))
    scale = largest / _LARGEST
    # A row of zeros, or of values too small to divide by, becomes zero.
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    rounded = (values / divisor.unsqueeze(1)).round().clamp(-_LARGEST, _LARGEST)
    return rounded.to(torch.int8), scale


def one_table(embeddings: Embeddings[Tensor]) -> Tensor:
    """Returns the tables concatenated; a copy if there are several."""
    stored = embeddings.stored_tables() or [torch.empty(0, embeddings.embedding_dim)]
    return stored[0] if len(stored) == 1 else torch.cat(stored)


class FrozenEmbedding(Embeddings[Tensor]):
    """A read-only joint table.

    Args:
        table: [R, D] float32, bfloat16 or int8; not copied.
        scale: [R] float32 scale of each row; None for a floating-point table.
        table_sizes: rows of each feature.
        hash_indices: whether to reduce ids modulo the table size.
        checks_ids: whether to refuse ids outside their tables; exporters do not support this.
    """

    def __init__(
        self,
        table: Tensor,
        scale: Tensor | None,
        table_sizes: Sequence[int],
        hash_indices: bool,
        *,
        checks_ids: bool = False,
    ) -> None:
        super().__init__(table_sizes, table.shape[1], hash_indices)
        offsets = torch.tensor(list(itertools.accumulate(self.table_sizes, initial=0)))
        self._offsets = offsets if checks_ids else None
        self.table: Tensor
        self.scale: Tensor | None
        self._starts: Tensor
        self._sizes: Tensor
        self.register_buffer("table", table)
        self.register_buffer("scale", scale)
        self.register_buffer("_starts", offsets[:-1].clone())
        self.register_buffer("_sizes", torch.tensor(self.table_sizes))

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Maps [B, F] ids to [B, F, D]; without `checks_ids`, ids must be inside their tables."""
        rows = self._rows(ids)
        if self.scale is None:
            return nn.functional.embedding(rows, self.table).to(dtype)
        flat = rows.flatten()
        vectors = self.table.index_select(0, flat).to(torch.float32)
        vectors = vectors * self.scale.index_select(0, flat).unsqueeze(1)
        return vectors.view(-1, len(self.table_sizes), self.embedding_dim).to(dtype)

    def _rows(self, ids: Tensor) -> Tensor:
        if self._offsets is not None:
            return ops.joint_rows(ids, self._offsets, hash_indices=self.hash_indices)
        if self.hash_indices:
            ids = torch.remainder(ids, self._sizes)
        return ids + self._starts

    def stored_tables(self) -> list[Tensor]:
        """Returns the table as floating point; a copy if it is quantized."""
        if self.scale is None:
            return [self.table]
        return [self.table.to(torch.float32) * self.scale.unsqueeze(1)]

    def shards(self) -> dict[int, Shard]:
        """Returns the rows of the joint table that belong to each feature."""
        return joint_shards(self.table_sizes)

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns an empty list, because the table is not trained."""
        return []
