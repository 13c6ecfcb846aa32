# SPDX-License-Identifier: Apache-2.0
"""Embedding tables of all categorical features, one class per `embedding_type`.

All map ids [B, F] to vectors [B, F, D]. They differ in storage (one joint table or one per feature)
and in how row gradients reach the optimizer. None computes the gradient of a whole table.
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from cuda_ext import ops
from dlrm.config import EmbeddingStorage
from dlrm.nn.table_files import TableFiles
from recsys.errors import UserError
from recsys.train.optimizers.rows import RowGradients, RowLookups

LookupsT = TypeVar("LookupsT")
"""Type of the ids: a tensor on one device; exchanged lookups on several devices."""

_LONG_ROW = 64
"""Least columns at which inference is faster with lookup and dot products in one pass."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """The rows of one feature's table that a process stores.

    Attributes:
        rows: their numbers in the feature's table; the step is the number of ranks for a row-wise
            table, otherwise 1.
        storage: number of the stored table that contains these rows.
        stored_rows: their numbers in the stored table.
        is_saved_here: whether this process saves them; only one rank saves a replicated table.
    """

    rows: slice
    storage: int
    stored_rows: slice
    is_saved_here: bool = True

    def view(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns this shard's rows from tensors with the shapes of the stored tables."""
        return tensors[self.storage][self.stored_rows]


def joint_shards(table_sizes: Sequence[int]) -> dict[int, Shard]:
    """Returns {feature: shard} for a joint table that contains whole tables."""
    starts = itertools.accumulate(table_sizes, initial=0)
    return {
        feature: Shard(slice(0, rows, 1), 0, slice(start, start + rows))
        for feature, (rows, start) in enumerate(zip(table_sizes, starts, strict=False))
    }


class Embeddings(nn.Module, abc.ABC, Generic[LookupsT]):
    """Embedding tables of all categorical features.

    Args:
        table_sizes: rows of each table.
        embedding_dim: D, columns of each table.
        hash_indices: whether to reduce ids modulo the table size.

    Attributes:
        init_std: standard deviation of the initial values; None draws uniformly within bounds that
            depend on the table's size.
        trainable: whether to keep what an update needs.
        finds_overflow: whether to look for infinite row gradients in backward, where this costs no
            additional pass.
        files: contain the tables and their optimizer state; None if they are in memory.
    """

    files: TableFiles | None = None

    def __init__(self, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool) -> None:
        super().__init__()
        self.table_sizes = tuple(table_sizes)
        self._unknown_is_zero = False
        self.init_std: float | None = None
        self.embedding_dim = embedding_dim
        self.hash_indices = hash_indices
        self.trainable = True
        self.finds_overflow = False

    def prepare(self, ids: LookupsT) -> LookupsT:
        """Starts the communication of `forward`, so that it overlaps with computation.

        Returns:
            The argument for `forward`.
        """
        return ids

    @abc.abstractmethod
    def forward(self, ids: LookupsT, dtype: torch.dtype) -> Tensor:
        """Looks up one row per feature.

        Args:
            ids: [B, F] int in [0, table size), or exchanged lookups; never modified.
            dtype: dtype of the vectors.

        Returns:
            [B, F, D] vectors.
        """

    def prefers_one_pass(self) -> bool:
        """Returns True if `interact` is faster than two separate ops."""
        return False

    def interact(self, ids: LookupsT, bottom: Tensor) -> Tensor:
        """Computes the dot interaction of the looked-up vectors.

        Args:
            ids: as in `forward`.
            bottom: [B, D] output of the bottom MLP.

        Returns:
            [B, width], see `ops.dot_interaction`.
        """
        return ops.dot_interaction(self(ids, bottom.dtype), bottom)

    def joint_table(self) -> ops.JointTable | None:
        """Returns the tables for `ops.dlrm_forward`; None if it does not support them."""
        return None

    @abc.abstractmethod
    def stored_tables(self) -> list[Tensor]:
        """Returns the tables as stored, without copying them."""

    @abc.abstractmethod
    def shards(self) -> dict[int, Shard]:
        """Returns {feature: shard} of the features with rows on this process."""

    @abc.abstractmethod
    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the row gradients of the last backward pass and clears them."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws each table from N(0, init_std^2) or U(-sqrt(1 / rows), sqrt(1 / rows)).

        The uniform distribution is that of facebookresearch/dlrm, create_emb. Once
        `start_unknown_at_zero` was called, row 0 becomes zero.
        """
        stored = self.stored_tables()
        for feature, shard in self.shards().items():
            view = shard.view(stored)
            is_float32 = view.dtype == torch.float32
            drawn = view if is_float32 else torch.empty_like(view, dtype=torch.float32)
            if self.init_std is None:
                bound = math.sqrt(1 / self.table_sizes[feature])
                drawn.uniform_(-bound, bound)
            else:
                drawn.normal_(0, self.init_std)
            if not is_float32:
                _store(self, shard, drawn)
        if self._unknown_is_zero:
            self.start_unknown_at_zero()

    @torch.no_grad()
    def start_unknown_at_zero(self) -> None:
        """Sets row 0 of each table, for unknown categories, to zero.

        If training never sees an unknown category, serving would use a random vector otherwise.
        """
        self._unknown_is_zero = True
        stored = self.stored_tables()
        for shard in self.shards().values():
            if shard.rows.start == 0:
                shard.view(stored)[:1].zero_()

    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables in earlier batches; waits for the device.

        On a CPU, the lookup itself refuses such ids.

        Raises:
            UserError: an id was outside its table; the message names the feature.
        """


class JointEmbeddings(Embeddings[LookupsT]):
    """One [R, D] table that contains the tables of all features, one after the other.

    Args:
        table_sizes: rows of each feature's table.
        embedding_dim: D, columns of each table.
        hash_indices: whether to reduce ids modulo the table size.
        storage: `float32`, or `bfloat16`, which is updated with stochastic rounding.
        files: contain a float32 table; None puts it into memory.

    Attributes:
        in_autograd: whether autograd computes a gradient of the table; otherwise it is updated in
            place.
    """

    in_autograd: ClassVar[bool] = True

    def __init__(
        self,
        table_sizes: Sequence[int],
        embedding_dim: int,
        hash_indices: bool,
        storage: EmbeddingStorage = "float32",
        files: TableFiles | None = None,
    ) -> None:
        super().__init__(table_sizes, embedding_dim, hash_indices)
        self.files = files
        starts = list(itertools.accumulate(self.table_sizes, initial=0))
        self._row_dtype = torch.int32 if starts[-1] < 2**31 else torch.int64
        self._offsets: Tensor
        self._bad_id: Tensor
        self.register_buffer("_offsets", torch.tensor(starts), persistent=False)
        self.register_buffer("_bad_id", torch.full((1,), ops.NO_BAD_ID), persistent=False)
        shape = torch.Size((starts[-1], embedding_dim))
        if files is None:
            table = ops.use_huge_pages(torch.empty(shape, dtype=getattr(torch, storage)))
        else:
            table = files.allocate(shape)
        self.weight = nn.Parameter(table, self.in_autograd)

    def stored_tables(self) -> list[Tensor]:
        """Returns the joint table."""
        return [self.weight.data]

    def shards(self) -> dict[int, Shard]:
        """Returns the rows of the joint table that belong to each feature."""
        return joint_shards(self.table_sizes)

    def table_rows(self, ids: Tensor, bag_offsets: Tensor | None = None) -> Tensor:
        """Returns the row number of each id, [L] for bags; see `ops.joint_rows`."""
        return ops.joint_rows(
            ids,
            self._offsets,
            bag_offsets=bag_offsets,
            hash_indices=self.hash_indices,
            dtype=self._row_dtype,
            bad=self._bad_id if ids.is_cuda else None,
        )

    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables in earlier batches; waits for the device."""
        lookup = int(self._bad_id)
        if lookup != ops.NO_BAD_ID:
            raise UserError(
                f"{self._describe_bad_id(lookup)}; the dataset does not match its feature spec, or "
                "`hash_indices` is missing",
                setting="hash_indices",
            )

    def _describe_bad_id(self, lookup: int) -> str:
        """Describes an id outside its table, given its number in a batch."""
        feature = lookup % len(self.table_sizes)
        return (
            f"categorical feature {feature}: a batch contained an id outside [0, "
            f"{self.table_sizes[feature]}), the rows of its table"
        )

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the sparse gradient of the last backward pass and clears it."""
        gradient, self.weight.grad = self.weight.grad, None
        return [] if gradient is None else [_from_sparse(0, gradient)]


class JointRows(JointEmbeddings[Tensor]):
    """A joint table that returns one row for each id."""

    @abc.abstractmethod
    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Looks up rows of the joint table.

        Args:
            rows: [...] int32 or int64 row numbers.
            dtype: dtype of the vectors.

        Returns:
            [..., D] vectors.
        """

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Maps [B, F] to [B, F, D]."""
        return self.lookup(self.table_rows(ids), dtype)


class JointEmbedding(JointRows):
    """A joint table in plain PyTorch, with a sparse gradient (`joint`)."""

    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Looks up rows with PyTorch's embedding."""
        return nn.functional.embedding(rows, self.weight, sparse=self.trainable).to(dtype)


class JointSparseEmbedding(JointRows):
    """A joint table with the extension's lookup and a sparse gradient (`joint_sparse`).

    The gradient is an ordinary sparse tensor in `weight.grad`, so any optimizer can use it.
    """

    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Looks up rows with the extension."""
        return ops.sparse_embedding(self.weight, rows, dtype)


class JointFusedEmbedding(JointRows):
    """A joint table outside autograd, updated in place row by row (`joint_fused`).

    The table has no gradient tensor, dense or sparse. Autograd delivers the row gradients through a
    placeholder tensor, see `ops.row_gradient_anchor`.

    Attributes:
        sorts_early: whether to sort the rows of a step on a GPU during its forward pass.
    """

    in_autograd = False
    sorts_early = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lookups = RowLookups()

    def _trains(self) -> bool:
        return self.trainable and torch.is_grad_enabled()

    def _anchor(
        self, rows: Tensor, dtype: torch.dtype, overflow: Tensor | None = None
    ) -> Tensor | None:
        """Returns the tensor that will receive the row gradients; None outside training."""
        if not self._trains():
            return None
        num_table_rows = len(self.weight) if self.sorts_early else None
        return self._lookups.anchor(rows, self.embedding_dim, dtype, num_table_rows, overflow)

    def lookup(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Looks up rows with the extension."""
        anchor = self._anchor(rows, dtype)
        return ops.embedding_gather(self.weight, rows, dtype, anchor=anchor)

    def prefers_one_pass(self) -> bool:
        """Returns True if `interact` is faster than two separate ops.

        On a CPU (measured with AVX-512, two cores), it is a quarter faster in inference with long
        rows; it is never faster in training, because backward reads the rows again. On CUDA, it
        moves at most half the bytes (counted, not measured).
        """
        if self.weight.is_cuda:
            return True
        return not self._trains() and self.embedding_dim >= _LONG_ROW

    def interact(self, ids: Tensor, bottom: Tensor) -> Tensor:
        """Looks up and multiplies in one pass, without storing [B, F, D]."""
        rows = self.table_rows(ids)
        overflow = (
            torch.zeros((), dtype=torch.bool, device=rows.device)
            if self.finds_overflow and self._trains()
            else None
        )
        anchor = self._anchor(rows, bottom.dtype, overflow)
        return ops.gather_dot_interaction(
            self.weight, rows, bottom, anchor=anchor, overflow=overflow
        )

    def joint_table(self) -> ops.JointTable:
        """Returns the joint table."""
        return ops.JointTable(self.weight, self._offsets, self.hash_indices)

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the row gradients of the last backward pass and clears them."""
        return self._lookups.take(0)


class MultiTableEmbedding(Embeddings[Tensor]):
    """One table per feature in plain PyTorch, with sparse gradients (`multi_table`)."""

    def __init__(self, table_sizes: Sequence[int], embedding_dim: int, hash_indices: bool) -> None:
        super().__init__(table_sizes, embedding_dim, hash_indices)
        self._sizes: Tensor
        self.register_buffer("_sizes", torch.tensor(self.table_sizes), persistent=False)
        self.weights = nn.ParameterList(torch.empty(n, embedding_dim) for n in self.table_sizes)

    def stored_tables(self) -> list[Tensor]:
        """Returns one table per feature."""
        return [weight.data for weight in self.weights]

    def shards(self) -> dict[int, Shard]:
        """Returns one shard per feature with all its rows."""
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
        """Returns the sparse gradients of the last backward pass and clears them."""
        gradients = []
        for i, weight in enumerate(self.weights):
            gradient, weight.grad = weight.grad, None
            if gradient is not None:
                gradients.append(_from_sparse(i, gradient))
        return gradients


def read_tables(embeddings: Embeddings[LookupsT]) -> dict[int, Tensor]:
    """Returns {feature: [rows, D] float32} of the rows stored on this process.

    The tensors are views of float32 tables, and copies of other tables.
    """
    values = embeddings.stored_tables()
    return {
        feature: shard.view(values).to(torch.float32)
        for feature, shard in embeddings.shards().items()
    }


@torch.no_grad()
def load_table(embeddings: Embeddings[LookupsT], feature: int, values: Tensor) -> None:
    """Copies a table's values into the rows stored on this process.

    Args:
        embeddings: tables to change.
        feature: number of the feature.
        values: [rows, D] floating point, the whole table, or its first rows.
    """
    shard = embeddings.shards().get(feature)
    if shard is not None:
        _store(embeddings, shard, values[shard.rows])


def _store(embeddings: Embeddings[LookupsT], shard: Shard, values: Tensor) -> None:
    """Copies values into the first rows of a shard."""
    ops.copy_values(shard.view(embeddings.stored_tables())[: len(values)], values)


def _from_sparse(table: int, gradient: Tensor) -> RowGradients:
    return RowGradients(table, gradient._indices()[0], gradient._values())


_TYPES: dict[str, type[JointRows | MultiTableEmbedding]] = {
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
    *,
    init_std: float | None = None,
    draws: bool = True,
    files: TableFiles | None = None,
) -> Embeddings[Tensor]:
    """Builds embeddings of a type and storage.

    Args:
        embedding_type: name of the class, as in the setting.
        table_sizes: rows of each table.
        embedding_dim: D.
        hash_indices: whether to reduce ids modulo the table size.
        storage: storage of `joint_fused`.
        init_std: see `Embeddings`.
        draws: whether to draw random values. For shards, the caller draws them, because they
            depend on the size of the whole tables.
        files: contain the table of `joint_fused`; None puts the tables into memory.
    """
    tables: Embeddings[Tensor]
    if embedding_type == "joint_fused":
        tables = JointFusedEmbedding(table_sizes, embedding_dim, hash_indices, storage, files)
    else:
        tables = _TYPES[embedding_type](table_sizes, embedding_dim, hash_indices)
    tables.init_std = init_std
    if draws:
        tables.reset_parameters()
    return tables
