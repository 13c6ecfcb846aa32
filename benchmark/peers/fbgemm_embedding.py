# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's table-batched embedding on the CPU (`make peers`)."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from cuda_ext.row_rules import ADAGRAD

FusedRule = Literal["sgd", "rowwise_adagrad"]


class TableBatchedEmbedding:
    """All tables in one module, which backward updates.

    Ids are not checked (`BoundsCheckMode.NONE`), the fastest setting.

    Args:
        table_sizes: rows of each table.
        dim: D, columns of each table.
        rule: optimizer.
        lr: learning rate.
    """

    def __init__(self, table_sizes: Sequence[int], dim: int, rule: FusedRule, lr: float) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            BoundsCheckMode,
            ComputeDevice,
            EmbeddingLocation,
            PoolingMode,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        optimizers = {
            "sgd": EmbOptimType.EXACT_SGD,
            "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        }
        self._dim = dim
        self._module: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in table_sizes],
            optimizer=optimizers[rule],
            learning_rate=lr,
            eps=ADAGRAD["eps"],
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
        )

    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per table, not a copy."""
        weights: list[Tensor] = self._module.split_embedding_weights()
        return weights

    def __call__(self, values: Tensor, offsets: Tensor) -> Tensor:
        """Looks up ids.

        Args:
            values: [F * B] int64, all ids of the first table first.
            offsets: [F * B + 1] int64, start of each bag in `values`.

        Returns:
            [B, F * D].
        """
        vectors: Tensor = self._module(values, offsets)
        return vectors
