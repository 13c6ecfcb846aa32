# SPDX-License-Identifier: Apache-2.0
"""Implementations of embedding tables: ours, FBGEMM's, nn.EmbeddingBag."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from benchmark.kernels.case import OURS, row_offsets, table_major
from benchmark.peers.fbgemm_embedding import FusedRule, TableBatchedEmbedding
from benchmark.peers.torchrec_interaction import has_torchrec
from cuda_ext import ops

LEARNING_RATE = 0.01
FBGEMM = "FBGEMM TBE"
EMBEDDING_BAG = "nn.EmbeddingBag"


@dataclasses.dataclass(frozen=True, slots=True)
class IdBatch:
    """A batch of ids in the layout of each implementation.

    Attributes:
        ids: [B, F] int64.
        columns: F tensors [B] int64.
        values: [F * B] int64, all ids of the first feature first.
        offsets: [F * B + 1] int64.
    """

    ids: Tensor
    columns: list[Tensor]
    values: Tensor
    offsets: Tensor

    @classmethod
    def from_ids(cls, ids: Tensor) -> "IdBatch":
        """Converts ids [B, F] to all layouts."""
        return cls(ids, [column.contiguous() for column in ids.unbind(1)], *table_major(ids))


class Tables(Protocol):
    """An implementation of embedding tables and their update."""

    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per table."""

    def look_up(self, batch: IdBatch) -> Tensor:
        """Looks up differentiable vectors: [B, F, D]."""

    def backward(self, vectors: Tensor, gradient: Tensor) -> None:
        """Runs the backward pass of looked-up vectors."""

    def update(self) -> None:
        """Applies the gradients of the last backward pass."""


class OurTables:
    """A joint table outside autograd, with the extension's ops.

    Args:
        table_sizes: rows of each table.
        dim: D.
        rule: optimizer.
    """

    def __init__(self, table_sizes: Sequence[int], dim: int, rule: FusedRule) -> None:
        self._sizes = list(table_sizes)
        self._offsets = row_offsets(table_sizes)
        self.table = torch.empty(sum(table_sizes), dim)
        ops.use_huge_pages(self.table)
        bound = 1 / dim**0.5
        self.table.uniform_(-bound, bound, generator=torch.Generator().manual_seed(4))
        self._rule = rule
        self._state = ops.row_optimizer_state(rule, self.table)
        self._lr = torch.tensor(LEARNING_RATE)
        self._step = torch.zeros(())
        self._pending: tuple[Tensor, Tensor] | None = None

    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per table."""
        return list(torch.split(self.table, self._sizes))

    def _rows_and_anchor(self, batch: IdBatch) -> tuple[Tensor, Tensor]:
        rows = ops.joint_rows(batch.ids, self._offsets, dtype=torch.int32)
        anchor = ops.row_gradient_anchor(
            (*rows.shape, self.table.shape[1]), torch.float32, self.table.device
        )
        self._pending = rows, anchor
        return rows, anchor

    def look_up(self, batch: IdBatch) -> Tensor:
        """Returns [B, F, D]."""
        rows, anchor = self._rows_and_anchor(batch)
        return ops.embedding_gather(self.table, rows, torch.float32, anchor=anchor)

    def backward(self, vectors: Tensor, gradient: Tensor) -> None:
        """Stores the gradient of the vectors for `update`.

        Autograd would copy `gradient` into `anchor.grad`, because the caller keeps it. In a model
        nothing else keeps it, so no copy is made.
        """
        assert self._pending is not None
        _, anchor = self._pending
        (anchor.grad,) = torch.autograd.grad(vectors, [anchor], gradient)

    def look_up_and_interact(self, batch: IdBatch, bottom: Tensor) -> Tensor:
        """Computes lookup and dot interaction with `bottom` [B, D], fused."""
        rows, anchor = self._rows_and_anchor(batch)
        return ops.gather_dot_interaction(self.table, rows, bottom, anchor=anchor)

    def update(self) -> None:
        """Applies the gradients of the last backward pass."""
        assert self._pending is not None
        rows, anchor = self._pending
        assert anchor.grad is not None
        self._pending = None
        self._step += 1
        ops.update_rows(
            self._rule,
            self.table,
            self._state,
            rows.reshape(-1),
            anchor.grad.reshape(-1, self.table.shape[1]),
            ops.RowStep(lr=self._lr, step=self._step),
        )


class FbgemmTables:
    """FBGEMM's table batched embedding: its backward pass updates the tables.

    Args:
        table_sizes: rows of each table.
        dim: D.
        rule: optimizer.
    """

    def __init__(self, table_sizes: Sequence[int], dim: int, rule: FusedRule) -> None:
        self._shape = (-1, len(table_sizes), dim)
        self._module = TableBatchedEmbedding(table_sizes, dim, rule, LEARNING_RATE)

    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per table."""
        return self._module.tables()

    def look_up(self, batch: IdBatch) -> Tensor:
        """Returns [B, F, D]."""
        return self._module(batch.values, batch.offsets).view(self._shape)

    def backward(self, vectors: Tensor, gradient: Tensor) -> None:
        """Runs the backward pass, which updates the tables."""
        vectors.backward(gradient)  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Does nothing: backward has updated the tables."""


class EmbeddingBagTables:
    """One nn.EmbeddingBag per table with sparse gradients, and torch's SGD.

    Args:
        table_sizes: rows of each table.
        dim: D.
    """

    def __init__(self, table_sizes: Sequence[int], dim: int) -> None:
        self._bags = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(
                torch.empty(rows, dim), freeze=False, mode="sum", sparse=True
            )
            for rows in table_sizes
        )
        self._optimizer = torch.optim.SGD(self._bags.parameters(), lr=LEARNING_RATE)
        self._offsets = torch.empty(0, dtype=torch.int64)

    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per table."""
        return [parameter.data for parameter in self._bags.parameters()]

    def look_up(self, batch: IdBatch) -> Tensor:
        """Returns [B, F, D]."""
        if self._offsets.numel() != batch.ids.shape[0]:
            self._offsets = torch.arange(batch.ids.shape[0])
        vectors = [
            bag(column, self._offsets)
            for bag, column in zip(self._bags, batch.columns, strict=True)
        ]
        return torch.stack(vectors, dim=1)

    def backward(self, vectors: Tensor, gradient: Tensor) -> None:
        """Runs the backward pass."""
        vectors.backward(gradient)  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Applies the gradients of the last backward pass."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def build_tables(table_sizes: Sequence[int], dim: int, rule: FusedRule) -> dict[str, Tables]:
    """Builds every implementation of an optimizer, ours first, equal weights.

    PyTorch has no row-wise Adagrad, and FBGEMM is optional.

    Args:
        table_sizes: rows of each table.
        dim: D.
        rule: optimizer.
    """
    ours = OurTables(table_sizes, dim, rule)
    tables: dict[str, Tables] = {OURS: ours}
    if rule == "sgd":
        tables[EMBEDDING_BAG] = EmbeddingBagTables(table_sizes, dim)
    if has_torchrec():
        tables[FBGEMM] = FbgemmTables(table_sizes, dim, rule)
    for implementation in tables.values():
        for source, target in zip(ours.tables(), implementation.tables(), strict=True):
            if source.data_ptr() != target.data_ptr():
                target.copy_(source)
    return tables
