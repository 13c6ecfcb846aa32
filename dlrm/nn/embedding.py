# SPDX-License-Identifier: Apache-2.0
"""Embedding tables of all categorical features, in the four ways of --embedding_type.

All of them look up [B, F] ids and give [B, F, D]; they differ in where the tables lie and how the
gradient of the looked-up rows reaches the optimizer. None ever makes a gradient of a whole table.
Letters: B batch, F tables, D embedding dimension, R rows of the joint table, L = B x F lookups.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cuda_ext import ops
from cuda_ext.ops import RowOptimizer


@dataclasses.dataclass(frozen=True, slots=True)
class RowGradients:
    """Gradients of looked-up rows of one stored table.

    Attributes:
        table: index of the stored table (0 where there is one joint table).
        rows: [L] int64; a row may occur more than once.
        gradients: [L, D].
    """

    table: int
    rows: Tensor
    gradients: Tensor


class Embeddings(nn.Module, abc.ABC):
    """Tables of all categorical features.

    Args:
        table_sizes: rows of each table.
        embedding_dim: D.
        hash_indices: take ids modulo the table size.

    Attributes:
        table_sizes: as given.
    """

    def __init__(self, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool) -> None:
        super().__init__()
        self.table_sizes = tuple(table_sizes)
        self.embedding_dim = embedding_dim
        self.hash_indices = hash_indices
        self.trainable = True
        self._sizes: Tensor
        self.register_buffer(
            "_sizes", torch.tensor(self.table_sizes, dtype=torch.int64), persistent=False
        )

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Looks up one row per feature.

        Args:
            ids: [B, F] int64 in [0, table size); never changed.
            dtype: of the result.

        Returns:
            [B, F, D] of `dtype`.
        """
        if self.hash_indices:
            ids = torch.remainder(ids, self._sizes)
        return self._look_up(ids, dtype)

    @abc.abstractmethod
    def _look_up(self, ids: Tensor, dtype: torch.dtype) -> Tensor: ...

    @abc.abstractmethod
    def stored_tables(self) -> list[Tensor]:
        """Returns the tables as they lie in memory; changing them changes the model."""

    @abc.abstractmethod
    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients that backward left, and forgets them."""

    def per_feature(self, stored: Sequence[Tensor]) -> list[Tensor]:
        """Splits tensors that lie like the stored tables into one view per feature."""
        return list(stored)

    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per feature; changing it changes the model."""
        return self.per_feature(self.stored_tables())

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws each table from U(-sqrt(1 / rows), sqrt(1 / rows)).

        Source: facebookresearch/dlrm, create_emb.
        """
        for table in self.tables():
            bound = math.sqrt(1 / table.shape[0])
            table.uniform_(-bound, bound)


class _JointTable(Embeddings):
    """One [R, D] table for all features, feature i starting at row offset i."""

    def __init__(self, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool) -> None:
        super().__init__(table_sizes, embedding_dim, hash_indices)
        starts = list(itertools.accumulate(self.table_sizes, initial=0))
        self._offsets: Tensor
        self.register_buffer(
            "_offsets", torch.tensor(starts[:-1], dtype=torch.int64), persistent=False
        )
        self.weight = nn.Parameter(torch.empty(starts[-1], embedding_dim))
        self.reset_parameters()

    def stored_tables(self) -> list[Tensor]:
        return [self.weight.data]

    def per_feature(self, stored: Sequence[Tensor]) -> list[Tensor]:
        return list(torch.split(stored[0], list(self.table_sizes)))

    def _rows(self, ids: Tensor) -> Tensor:
        return ids + self._offsets

    def take_row_gradients(self) -> list[RowGradients]:
        gradient, self.weight.grad = self.weight.grad, None
        return [] if gradient is None else [_from_sparse(0, gradient)]


class JointEmbedding(_JointTable):
    """One joint table, looked up by plain PyTorch with a sparse gradient (`joint`)."""

    def _look_up(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        rows = self._rows(ids)
        return nn.functional.embedding(rows, self.weight, sparse=self.trainable).to(dtype)


class JointSparseEmbedding(_JointTable):
    """One joint table through the extension's gather, with a sparse gradient (`joint_sparse`).

    The gradient is an ordinary sparse tensor in `weight.grad`, so any optimizer can use it.
    """

    def _look_up(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        found: Tensor = _SparseGather.apply(self.weight, self._rows(ids), dtype)  # type: ignore[no-untyped-call]
        return found


class _SparseGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, table: Tensor, rows: Tensor, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.table_shape = table.shape  # type: ignore[attr-defined]
        return ops.embedding_gather(table, rows, dtype)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors  # type: ignore[attr-defined]
        shape = ctx.table_shape  # type: ignore[attr-defined]
        values = gradient.reshape(-1, shape[1]).to(torch.float32)
        sparse = torch.sparse_coo_tensor(
            rows.reshape(1, -1), values, shape, check_invariants=False, is_coalesced=False
        )
        return sparse, None, None


class JointFusedEmbedding(_JointTable):
    """One joint table outside autograd, updated in place by rows (`joint_fused`).

    The looked-up vectors are a leaf of the graph: their gradient is the row gradient, so no
    gradient tensor of the table exists, dense or sparse.
    """

    def __init__(self, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool) -> None:
        super().__init__(table_sizes, embedding_dim, hash_indices)
        self.weight.requires_grad_(False)
        self._pending: list[tuple[Tensor, Tensor]] = []

    def _look_up(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        rows = self._rows(ids)
        vectors = ops.embedding_gather(self.weight, rows, dtype)
        if self.trainable and torch.is_grad_enabled():
            vectors.requires_grad_()
            self._pending.append((rows, vectors))
        return vectors

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients of the vectors that were looked up."""
        pending, self._pending = self._pending, []
        return [
            RowGradients(0, rows.reshape(-1), vectors.grad.reshape(-1, self.embedding_dim))
            for rows, vectors in pending
            if vectors.grad is not None
        ]


class MultiTableEmbedding(Embeddings):
    """One table per feature, each with a sparse gradient (`multi_table`)."""

    def __init__(self, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool) -> None:
        super().__init__(table_sizes, embedding_dim, hash_indices)
        self.weights = nn.ParameterList(torch.empty(n, embedding_dim) for n in self.table_sizes)
        self.reset_parameters()

    def stored_tables(self) -> list[Tensor]:
        """Returns one table per feature."""
        return [weight.data for weight in self.weights]

    def _look_up(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        vectors = [
            nn.functional.embedding(column, weight, sparse=self.trainable)
            for column, weight in zip(ids.unbind(1), self.weights, strict=True)
        ]
        return torch.stack(vectors, dim=1).to(dtype)

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the sparse gradient of each table that has one."""
        found = []
        for i, weight in enumerate(self.weights):
            gradient, weight.grad = weight.grad, None
            if gradient is not None:
                found.append(_from_sparse(i, gradient))
        return found


def _from_sparse(table: int, gradient: Tensor) -> RowGradients:
    return RowGradients(table, gradient._indices()[0], gradient._values())


_TYPES: dict[str, type[_JointTable | MultiTableEmbedding]] = {
    "joint": JointEmbedding,
    "joint_fused": JointFusedEmbedding,
    "joint_sparse": JointSparseEmbedding,
    "multi_table": MultiTableEmbedding,
}


def build_embeddings(
    embedding_type: str, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool
) -> Embeddings:
    """Returns the tables that --embedding_type names."""
    return _TYPES[embedding_type](table_sizes, embedding_dim, hash_indices)


class RowwiseOptimizer:
    """Applies the row gradients of embeddings, of whatever type, to their tables.

    Args:
        embeddings: the tables.
        rule: `sgd`, `rowwise_adagrad` or `adam`.
        weight_decay: on the rows that occur.

    Attributes:
        state: one dict of tensors per stored table.
        steps: scalar float32 tensor, optimizer steps that were applied.
    """

    def __init__(self, embeddings: Embeddings, rule: RowOptimizer, weight_decay: float) -> None:
        self._embeddings = embeddings
        self._rule = rule
        self._weight_decay = weight_decay
        tables = embeddings.stored_tables()
        self.state = [ops.row_optimizer_state(rule, table) for table in tables]
        device = tables[0].device if tables else torch.device("cpu")
        self.steps = torch.zeros((), device=device)

    def gradients(self) -> list[RowGradients]:
        """Takes the gradients that backward left."""
        return self._embeddings.take_row_gradients()

    @torch.no_grad()
    def step(
        self,
        gradients: Sequence[RowGradients],
        lr: Tensor,
        inverse_scale: float = 1.0,
        overflow: Tensor | None = None,
    ) -> None:
        """Applies gradients.

        Args:
            gradients: from `gradients`.
            lr: scalar float32 tensor on the device.
            inverse_scale: 1 / loss scale.
            overflow: scalar bool tensor; True changes nothing.
        """
        self.steps += 1 if overflow is None else (~overflow).to(self.steps.dtype)
        tables = self._embeddings.stored_tables()
        for found in gradients:
            ops.update_rows(
                self._rule,
                tables[found.table],
                self.state[found.table],
                found.rows,
                found.gradients,
                lr=lr,
                step=self.steps,
                weight_decay=self._weight_decay,
                inverse_scale=inverse_scale,
                overflow=overflow,
            )

    def state_per_feature(self) -> list[dict[str, Tensor]]:
        """Returns the state of each feature's table, as views: it does not depend on the type."""
        names = self.state[0].keys() if self.state else ()
        per_name = {
            name: self._embeddings.per_feature([state[name] for state in self.state])
            for name in names
        }
        return [
            {name: views[i] for name, views in per_name.items()}
            for i in range(len(self._embeddings.table_sizes))
        ]
