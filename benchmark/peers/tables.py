# SPDX-License-Identifier: Apache-2.0
"""Implementations of embedding tables: ours, FBGEMM's, nn.EmbeddingBag."""

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmark.peers.torchrec import has_torchrec
from benchmark.side_by_side import OURS, table_major
from benchmark.stopwatch import CPU
from cuda_ext import ops
from cuda_ext.row_rules import ADAGRAD

FusedRule = Literal["sgd", "rowwise_adagrad"]

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


class Tables(abc.ABC):
    """An implementation of embedding tables and their update."""

    @abc.abstractmethod
    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per table."""

    @abc.abstractmethod
    def look_up(self, batch: IdBatch) -> Tensor:
        """Looks up differentiable vectors: [B, F, D]."""

    @abc.abstractmethod
    def update(self) -> None:
        """Applies the gradients of the last backward pass."""

    def train(self, batch: IdBatch, gradient: Tensor) -> None:
        """Looks up vectors, takes their gradient [B, F, D], and updates."""
        self.look_up(batch).backward(gradient)  # type: ignore[no-untyped-call]
        self.update()


class OurTables(Tables):
    """A joint table outside autograd, with the extension's ops."""

    def __init__(
        self, table_sizes: Sequence[int], dim: int, rule: FusedRule, device: torch.device
    ) -> None:
        self._sizes = list(table_sizes)
        starts = list(itertools.accumulate(table_sizes, initial=0))
        self._offsets = torch.tensor(starts, dtype=torch.int64, device=device)
        self.table = torch.empty(sum(table_sizes), dim, device=device)
        if device.type == "cpu":
            ops.use_huge_pages(self.table)
        bound = 1 / dim**0.5
        self.table.uniform_(-bound, bound, generator=torch.Generator(device).manual_seed(4))
        self._rule = rule
        self._state = ops.row_optimizer_state(rule, self.table)
        self._lr = torch.tensor(LEARNING_RATE, device=device)
        self._step = torch.zeros((), device=device)
        self._pending: tuple[Tensor, Tensor] | None = None
        # As in training: nothing waits for a GPU to report a bad id.
        is_cpu = device.type == "cpu"
        self._bad = None if is_cpu else torch.full((1,), ops.NO_BAD_ID, device=device)

    def tables(self) -> list[Tensor]:
        """Returns one [rows, D] view per table."""
        return list(torch.split(self.table, self._sizes))

    def _rows_and_anchor(self, batch: IdBatch) -> tuple[Tensor, Tensor]:
        rows = ops.joint_rows(batch.ids, self._offsets, dtype=torch.int32, bad=self._bad)
        anchor = ops.row_gradient_anchor(
            (*rows.shape, self.table.shape[1]), torch.float32, self.table.device
        )
        self._pending = rows, anchor
        return rows, anchor

    def look_up(self, batch: IdBatch) -> Tensor:
        """Returns [B, F, D]."""
        rows, anchor = self._rows_and_anchor(batch)
        return ops.embedding_gather(self.table, rows, torch.float32, anchor=anchor)

    def train(self, batch: IdBatch, gradient: Tensor) -> None:
        """Looks up and updates without a copy of the gradient.

        Autograd would copy `gradient` into `anchor.grad`, because the caller keeps it. In a model
        nothing else keeps it, so no copy is made.
        """
        vectors = self.look_up(batch)
        assert self._pending is not None
        _, anchor = self._pending
        (anchor.grad,) = torch.autograd.grad(vectors, [anchor], gradient)
        self.update()

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


class _FbgemmTables(Tables):
    """FBGEMM's table batched embedding: its backward pass updates the tables.

    Ids are not checked (`BoundsCheckMode.NONE`), the fastest setting.
    """

    def __init__(self, table_sizes: Sequence[int], dim: int, rule: FusedRule) -> None:
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
        self._shape = (-1, len(table_sizes), dim)
        self._module: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in table_sizes],
            optimizer=optimizers[rule],
            learning_rate=LEARNING_RATE,
            eps=ADAGRAD["eps"],
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
        )

    def tables(self) -> list[Tensor]:
        weights: list[Tensor] = self._module.split_embedding_weights()
        return weights

    def look_up(self, batch: IdBatch) -> Tensor:
        vectors: Tensor = self._module(batch.values, batch.offsets).view(self._shape)
        return vectors

    def update(self) -> None:
        """Does nothing: backward has updated the tables."""


class _EmbeddingBagTables(Tables):
    """One nn.EmbeddingBag per table with sparse gradients, and torch's SGD."""

    def __init__(self, table_sizes: Sequence[int], dim: int, device: torch.device) -> None:
        self._bags = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(
                torch.empty(rows, dim, device=device), freeze=False, mode="sum", sparse=True
            )
            for rows in table_sizes
        )
        self._optimizer = torch.optim.SGD(self._bags.parameters(), lr=LEARNING_RATE)
        self._offsets = torch.empty(0, dtype=torch.int64)

    def tables(self) -> list[Tensor]:
        return [parameter.data for parameter in self._bags.parameters()]

    def look_up(self, batch: IdBatch) -> Tensor:
        if self._offsets.numel() != batch.ids.shape[0]:
            self._offsets = torch.arange(batch.ids.shape[0], device=batch.ids.device)
        vectors = [
            bag(column, self._offsets)
            for bag, column in zip(self._bags, batch.columns, strict=True)
        ]
        return torch.stack(vectors, dim=1)

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def build_tables(
    table_sizes: Sequence[int], dim: int, rule: FusedRule, device: torch.device = CPU
) -> dict[str, Tables]:
    """Builds every implementation of an optimizer, ours first, with equal weights.

    PyTorch has no row-wise Adagrad; FBGEMM is optional, and measured only on CPUs.
    """
    ours = OurTables(table_sizes, dim, rule, device)
    tables: dict[str, Tables] = {OURS: ours}
    if rule == "sgd":
        tables[EMBEDDING_BAG] = _EmbeddingBagTables(table_sizes, dim, device)
    if has_torchrec() and device.type == "cpu":
        tables[FBGEMM] = _FbgemmTables(table_sizes, dim, rule)
    for implementation in tables.values():
        for source, target in zip(ours.tables(), implementation.tables(), strict=True):
            if source.data_ptr() != target.data_ptr():
                target.copy_(source)
    return tables


class TouchedRows:
    """The rows that some batches look up, to check them in float64."""

    def __init__(self, batches: Sequence[IdBatch]) -> None:
        columns = [torch.cat(column) for column in zip(*(b.columns for b in batches), strict=True)]
        self._rows = [torch.unique(column) for column in columns]

    def of(self, tables: Tables) -> Tensor:
        """Copies the looked-up rows of all tables: [looked-up rows, D]."""
        return torch.cat([t[rows] for t, rows in zip(tables.tables(), self._rows, strict=True)])

    def numbers(self, batch: IdBatch) -> Tensor:
        """Returns the number of each id among these rows: [B, F] int64."""
        numbers, start = [], 0
        for rows, column in zip(self._rows, batch.columns, strict=True):
            numbers.append(start + torch.searchsorted(rows, column))
            start += rows.numel()
        return torch.stack(numbers, dim=1)
