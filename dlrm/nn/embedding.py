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
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from cuda_ext import ops, reference
from dlrm.config import EmbeddingStorage
from recsys.errors import UserError
from recsys.train.optimizers.rows import RowGradients, RowLookups, StoredTable

LookupsT = TypeVar("LookupsT")
"""Ids as the tables take them: a tensor, or what several ranks exchange."""

_NONE_BAD = torch.iinfo(torch.int64).max
_LONG_ROW = 64
"""Columns of a row from which on a lookup costs more than reading the result again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """The rows of one feature's table that a process stores.

    Attributes:
        rows: of the table: first, past the last, and step, the number of shards dealt out by row.
        storage: number of the stored table that holds them.
        stored_rows: their rows there.
        is_saved_here: whether this process saves them; of copies one process does.
    """

    rows: slice
    storage: int
    stored_rows: slice
    is_saved_here: bool = True

    def view(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the shard's rows of tensors with the stored tables' rows."""
        return tensors[self.storage][self.stored_rows]


def joint_shards(table_sizes: Sequence[int]) -> dict[int, Shard]:
    """Returns the shards of whole tables, joined one after the other."""
    starts = itertools.accumulate(table_sizes, initial=0)
    return {
        feature: Shard(slice(0, rows, 1), 0, slice(start, start + rows))
        for feature, (rows, start) in enumerate(zip(table_sizes, starts, strict=False))
    }


class Embeddings(nn.Module, abc.ABC, Generic[LookupsT]):
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

    def prepare(self, ids: LookupsT) -> LookupsT:
        """Starts the communication of `forward`, so that it overlaps with computing.

        Args:
            ids: as the batch has them.

        Returns:
            What `forward` takes.
        """
        return ids

    @abc.abstractmethod
    def forward(self, ids: LookupsT, dtype: torch.dtype) -> Tensor:
        """Looks up one row per feature.

        Args:
            ids: [B, F] int, in [0, table size), or lookups of several ranks; never changed.
            dtype: of the result.

        Returns:
            [B, F, D] of `dtype`.
        """

    def prefers_one_pass(self) -> bool:
        """Returns whether `interact` is faster than lookup and interaction apart."""
        return False

    def interact(self, ids: LookupsT, bottom: Tensor) -> Tensor:
        """Looks up the rows and takes their dot products.

        Args:
            ids: as in `forward`.
            bottom: [B, D], output of the bottom MLP.

        Returns:
            The result of `ops.dot_interaction` for the looked-up rows.
        """
        return ops.dot_interaction(self(ids, bottom.dtype), bottom)

    @abc.abstractmethod
    def stored_tables(self) -> list[StoredTable]:
        """Returns the tables in memory; changing them changes the model."""

    @abc.abstractmethod
    def shards(self) -> dict[int, Shard]:
        """Returns this process's rows of each feature, if it has any."""

    @abc.abstractmethod
    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients that backward left, and forgets them."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws each table from U(-sqrt(1 / rows), sqrt(1 / rows)).

        Source: facebookresearch/dlrm, create_emb.
        """
        stored = [table.values for table in self.stored_tables()]
        for feature, shard in self.shards().items():
            view, bound = shard.view(stored), math.sqrt(1 / self.table_sizes[feature])
            if view.dtype == torch.float32:
                view.uniform_(-bound, bound)
            else:
                drawn = torch.empty_like(view, dtype=torch.float32).uniform_(-bound, bound)
                load_table(self, feature, drawn)

    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables met so far; waits for the device.

        On a CPU such ids are refused by the lookup itself.

        Raises:
            UserError: names the feature.
        """


class JointTable(Embeddings[Tensor]):
    """One [R, D] table for all features, feature i from offset i."""

    def __init__(
        self,
        table_sizes: Sequence[int],
        embedding_dim: int,
        hash_indices: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(table_sizes, embedding_dim, hash_indices)
        starts = list(itertools.accumulate(self.table_sizes, initial=0))
        self._row_dtype = torch.int32 if starts[-1] < 2**31 else torch.int64
        self._offsets: Tensor
        self._bad_id: Tensor
        self.register_buffer("_offsets", torch.tensor(starts), persistent=False)
        self.register_buffer("_bad_id", torch.full((1,), _NONE_BAD), persistent=False)
        self.weight = nn.Parameter(
            ops.use_huge_pages(torch.empty(starts[-1], embedding_dim, dtype=dtype))
        )

    @abc.abstractmethod
    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Looks up rows of the joint table.

        Args:
            rows: integers of any shape.
            dtype: of the result.

        Returns:
            [..., D] of `dtype`.
        """

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Maps [B, F] to [B, F, D]."""
        return self.lookup(self._rows(ids), dtype)

    def stored_tables(self) -> list[StoredTable]:
        """Returns the joint table."""
        return [StoredTable(self.weight.data)]

    def shards(self) -> dict[int, Shard]:
        """Returns the rows of the joint table that belong to each feature."""
        return joint_shards(self.table_sizes)

    def _rows(self, ids: Tensor) -> Tensor:
        return ops.joint_rows(
            ids,
            self._offsets,
            hash_indices=self.hash_indices,
            dtype=self._row_dtype,
            bad=self._bad_id if ids.is_cuda else None,
        )

    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables met so far; waits for the device."""
        position = int(self._bad_id)
        if position != _NONE_BAD:
            feature = position % len(self.table_sizes)
            raise UserError(
                f"categorical feature {feature}: a batch held an id outside [0, "
                f"{self.table_sizes[feature]}), the rows of its table; the dataset and its feature "
                "spec differ, or `hash_indices` is missing"
            )

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the sparse gradient that backward left, and forgets it."""
        gradient, self.weight.grad = self.weight.grad, None
        return [] if gradient is None else [_from_sparse(0, gradient)]


class JointEmbedding(JointTable):
    """One joint table, looked up by PyTorch with a sparse gradient (`joint`)."""

    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Reads rows; their gradient is a sparse tensor."""
        return nn.functional.embedding(rows, self.weight, sparse=self.trainable).to(dtype)


class JointSparseEmbedding(JointTable):
    """One joint table through the extension's gather, with a sparse gradient (`joint_sparse`).

    The gradient is an ordinary sparse tensor in `weight.grad`, so any optimizer can use it.
    """

    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Reads rows; their gradient is a sparse tensor."""
        return ops.sparse_embedding(self.weight, rows, dtype)


class JointFusedEmbedding(JointTable):
    """One joint table outside autograd, updated in place by rows (`joint_fused`).

    No gradient tensor of the table exists, dense or sparse: the gradient of the looked-up rows
    leaves through an anchor, see `ops.row_gradient_anchor`.

    Args:
        table_sizes: rows of each table.
        embedding_dim: D.
        hash_indices: take ids modulo the table size.
        storage: `float32`; `bfloat16`, written with stochastic rounding; or `planar`, float32 in
            two halves of which the forward pass reads the high one alone, as bfloat16.
    """

    def __init__(
        self,
        table_sizes: Sequence[int],
        embedding_dim: int,
        hash_indices: bool,
        storage: EmbeddingStorage = "float32",
    ) -> None:
        dtype = torch.float32 if storage == "float32" else torch.bfloat16
        super().__init__(table_sizes, embedding_dim, hash_indices, dtype)
        self.weight.requires_grad_(False)
        self.weight_low: Tensor | None
        low = torch.empty_like(self.weight, dtype=torch.int16) if storage == "planar" else None
        self.register_buffer("weight_low", low, persistent=False)
        self._lookups = RowLookups()

    def stored_tables(self) -> list[StoredTable]:
        """Returns the joint table."""
        return [StoredTable(self.weight.data, self.weight_low)]

    def _anchor(self, rows: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Returns the holder of these rows' gradient, where one is wanted."""
        if not (self.trainable and torch.is_grad_enabled()):
            return None
        return self._lookups.anchor(rows, self.embedding_dim, dtype)

    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Reads rows; their gradient leaves through an anchor."""
        anchor = self._anchor(rows, dtype)
        return ops.embedding_gather(self.weight, rows, dtype, anchor=anchor)

    def prefers_one_pass(self) -> bool:
        """Returns whether `interact` is faster than lookup and interaction apart.

        Measured on a CPU (AVX-512, two cores): in inference with long rows by a quarter, in
        training never, because backward reads the rows again. On CUDA it was counted, not
        measured: it moves half the bytes or less.
        """
        if self.weight.is_cuda:
            return True
        trains = self.trainable and torch.is_grad_enabled()
        return not trains and self.embedding_dim >= _LONG_ROW

    def interact(self, ids: Tensor, bottom: Tensor) -> Tensor:
        """Takes the dot products in one pass; [B, F, D] never exists."""
        rows = self._rows(ids)
        anchor = self._anchor(rows, bottom.dtype)
        return ops.gather_dot_interaction(self.weight, rows, bottom, anchor=anchor)

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients of the vectors that were looked up."""
        return self._lookups.take(0)


class MultiTableEmbedding(Embeddings[Tensor]):
    """One table per feature, each with a sparse gradient (`multi_table`)."""

    def __init__(self, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool) -> None:
        super().__init__(table_sizes, embedding_dim, hash_indices)
        self._sizes: Tensor
        self.register_buffer("_sizes", torch.tensor(self.table_sizes), persistent=False)
        self.weights = nn.ParameterList(torch.empty(n, embedding_dim) for n in self.table_sizes)

    def stored_tables(self) -> list[StoredTable]:
        """Returns one table per feature."""
        return [StoredTable(weight.data) for weight in self.weights]

    def shards(self) -> dict[int, Shard]:
        """Returns each stored table whole."""
        return {
            feature: Shard(slice(0, rows, 1), feature, slice(0, rows))
            for feature, rows in enumerate(self.table_sizes)
        }

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Maps [B, F] to [B, F, D]."""
        if self.hash_indices:
            ids = torch.remainder(ids, self._sizes)
        vectors = [
            nn.functional.embedding(column, weight, sparse=self.trainable)
            for column, weight in zip(ids.unbind(1), self.weights, strict=True)
        ]
        return torch.stack(vectors, dim=1).to(dtype)

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the sparse gradient of each table that has one."""
        gradients = []
        for i, weight in enumerate(self.weights):
            gradient, weight.grad = weight.grad, None
            if gradient is not None:
                gradients.append(_from_sparse(i, gradient))
        return gradients


def read_tables(embeddings: Embeddings[LookupsT]) -> dict[int, Tensor]:
    """Returns the stored rows of each feature as [rows, D] float32.

    They are views of the tables where these are float32, otherwise copies.
    """
    stored = embeddings.stored_tables()
    values = [table.values for table in stored]
    low = [table.low for table in stored if table.low is not None]
    return {
        feature: reference.join_planar(shard.view(values), shard.view(low))
        if low
        else shard.view(values).to(torch.float32)
        for feature, shard in embeddings.shards().items()
    }


@torch.no_grad()
def load_table(embeddings: Embeddings[LookupsT], feature: int, values: Tensor) -> None:
    """Copies a whole table's values into the rows that are stored here.

    Args:
        embeddings: that store it.
        feature: its number.
        values: [rows, D] floating point.
    """
    shard = embeddings.shards().get(feature)
    if shard is None:
        return
    stored = embeddings.stored_tables()
    into, values = shard.view([table.values for table in stored]), values[shard.rows]
    low = [table.low for table in stored if table.low is not None]
    if low:
        high, rest = reference.split_planar(values.to(into.device, torch.float32))
        into.copy_(high)
        shard.view(low).copy_(rest)
    else:
        into.copy_(values)


def _from_sparse(table: int, gradient: Tensor) -> RowGradients:
    return RowGradients(table, gradient._indices()[0], gradient._values())


_TYPES: dict[str, type[JointTable | MultiTableEmbedding]] = {
    "joint": JointEmbedding,
    "joint_sparse": JointSparseEmbedding,
    "multi_table": MultiTableEmbedding,
}


def build_embeddings(
    embedding_type: str,
    table_sizes: Sequence[int],
    embedding_dim: int,
    hash_indices: bool,
    storage: EmbeddingStorage = "float32",
) -> Embeddings[Tensor]:
    """Returns the tables that --embedding_type and --embedding_storage name, freshly drawn."""
    tables: Embeddings[Tensor]
    if embedding_type == "joint_fused":
        tables = JointFusedEmbedding(table_sizes, embedding_dim, hash_indices, storage)
    else:
        tables = _TYPES[embedding_type](table_sizes, embedding_dim, hash_indices)
    tables.reset_parameters()
    return tables
