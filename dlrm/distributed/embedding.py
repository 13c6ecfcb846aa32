# SPDX-License-Identifier: Apache-2.0
"""Embedding tables sharded over several ranks."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cuda_ext import ops
from dlrm.config import EmbeddingStorage
from dlrm.distributed.exchange import ExchangedLookups, VectorExchange
from dlrm.distributed.placement import Placement
from dlrm.nn.bags import BaggedEmbedding, Bags
from dlrm.nn.embedding import (
    Embeddings,
    JointFusedEmbedding,
    JointRows,
    Shard,
    build_embeddings,
)
from recsys.errors import UserError
from recsys.train.optimizers.rows import RowGradients
from recsys.train.processes import Processes

_LOCAL, _REPLICATED = 0, 1


class ShardedEmbeddings(Embeddings[ExchangedLookups]):
    """A rank's shards of the tables of all features.

    Args:
        placement: placement of the tables.
        rank: number of this rank.
        embedding_dim: D.
        embedding_type: type of the rank's joint tables.
        storage: storage of the rank's joint tables.
        has_lists: whether features may be lists; then the tables must be `joint_fused`.
        init_std: see `Embeddings`.
        draws: whether to draw random values.

    Attributes:
        local_features: features with a shard in `local`, in its order.
        local: joint table of the shards that only this rank has.
        replicated: joint table of the data-parallel tables.
        after_send_back: called in backward once the exchange of gradients of vectors has started.
        adds_by_lookup: whether the gradients of a replicated row are added lookup by lookup, as
            those of other rows are, and not first by each rank; then all ranks send them all.
    """

    adds_by_lookup = False

    def __init__(
        self,
        placement: Placement,
        rank: int,
        embedding_dim: int,
        embedding_type: str,
        storage: EmbeddingStorage = "float32",
        *,
        has_lists: bool = False,
        init_std: float | None = None,
        draws: bool = True,
    ) -> None:
        super().__init__([t.rows for t in placement.tables], embedding_dim, hash_indices=False)
        self.placement = placement
        self.rank = rank
        self.after_send_back: Callable[[], None] = lambda: None
        self.local_features = placement.sharded_on(rank)
        local = [placement.local_rows(i, rank) for i in self.local_features]
        replicated = placement.of_kind("replicate")
        sizes = [self.table_sizes[i] for i in replicated]
        self.local, self.replicated = (
            BaggedEmbedding(rows, embedding_dim, hash_indices=False, storage=storage)
            if has_lists
            else _joint(embedding_type, rows, embedding_dim, storage)
            for rows in (local, sizes)
        )
        if isinstance(self.replicated, JointFusedEmbedding):
            self.replicated.sorts_early = False  # it is updated with the rows of all ranks
        self._replicated_features: Tensor
        features = torch.tensor(replicated, dtype=torch.int64)
        self.register_buffer("_replicated_features", features, persistent=False)
        self.init_std = init_std
        if draws:
            self.reset_parameters()

    def prepare(self, ids: ExchangedLookups) -> ExchangedLookups:
        """Looks up this rank's rows and starts sending them."""
        device = self._replicated_features.device.type
        is_half = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_half else torch.float32
        return dataclasses.replace(ids, in_flight=self._send(ids, dtype))

    def _send(self, ids: ExchangedLookups, dtype: torch.dtype) -> tuple[Tensor, VectorExchange]:
        exchange = VectorExchange(ids.send_counts, ids.receive_counts, self.after_send_back)
        self.local.trainable = self.trainable
        rows = ids.rows
        if isinstance(self.local, BaggedEmbedding):
            assert isinstance(rows, Bags)
            return exchange.start(self.local.pool(rows.ids, rows, dtype)), exchange
        assert isinstance(rows, Tensor)
        return exchange.start(self.local.lookup(rows, dtype)), exchange

    def forward(self, ids: ExchangedLookups, dtype: torch.dtype) -> Tensor:
        """Returns the vectors of the local batch, [b, F, D].

        Args:
            ids: lookups of this step; after `prepare`, their vectors are in flight.
            dtype: dtype of the result and of the exchange.
        """
        arriving, exchange = ids.in_flight or self._send(ids, dtype)
        received = exchange.finish(arriving)
        own = None
        if len(self._replicated_features):
            self.replicated.trainable = self.trainable
            own = self.replicated(ids.replicated, received.dtype)
        vectors: Tensor = _SideBySide.apply(  # type: ignore[no-untyped-call]
            received,
            own,
            ids.output_rows,
            self._replicated_features,
            (ids.batch_size, len(self.table_sizes)),
            isinstance(self.local, BaggedEmbedding),
        )
        return vectors

    def shards(self) -> dict[int, Shard]:
        """Returns the shards in `local`, then the replicated tables."""
        own, copies = self.local.shards(), self.replicated.shards()
        shards = {}
        for position, feature in enumerate(self.local_features):
            table = self.placement.tables[feature]
            step = self.placement.world_size if table.kind == "rows" else 1
            rows = slice(self.placement.first_row(feature, self.rank), table.rows, step)
            shards[feature] = dataclasses.replace(own[position], rows=rows, storage=_LOCAL)
        for position, feature in enumerate(self.placement.of_kind("replicate")):
            shards[feature] = dataclasses.replace(
                copies[position], storage=_REPLICATED, is_saved_here=self.rank == 0
            )
        return shards

    def stored_tables(self) -> list[Tensor]:
        """Returns the joint tables `local` and `replicated`."""
        return [*self.local.stored_tables(), *self.replicated.stored_tables()]

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients of local rows, and those of replicated rows summed over ranks."""
        own = [dataclasses.replace(g, table=_LOCAL) for g in self.local.take_row_gradients()]
        return own + self._summed(self.replicated.take_row_gradients())

    def _summed(self, gradients: Sequence[RowGradients]) -> list[RowGradients]:
        """Sums the row gradients of the replicated tables over ranks."""
        rows = sum(self.table_sizes[i] for i in self.placement.of_kind("replicate"))
        if not rows or not self.trainable:
            return []
        device = self._replicated_features.device
        if self.adds_by_lookup:
            ranks = Processes(self.rank, self.placement.world_size)
            joined = ranks.gather_rows(gradients, [self.embedding_dim], device)
            return [dataclasses.replace(entry, table=_REPLICATED) for entry in joined]
        # A last column counts lookups: optimizers with moments must not update other rows.
        if gradients:
            (local,) = gradients  # there is only the joint table
            counted = torch.nn.functional.pad(local.of_lookups(), (0, 1), value=1.0)
            total = ops.sum_by_row(local.rows, counted, rows)
        else:
            total = torch.zeros(rows, self.embedding_dim + 1, device=device)
        dist.all_reduce(total)
        looked_up = total[:, -1] > 0
        if ops.skips_absent_rows(total):
            # The host does not wait to learn how many there are.
            numbers = torch.arange(rows, dtype=torch.int32, device=device)
            present = torch.where(looked_up, numbers, ops.ABSENT_ROW)
            return [RowGradients(_REPLICATED, present, total[:, :-1].contiguous())]
        present = looked_up.nonzero().squeeze(1)
        return [RowGradients(_REPLICATED, present, total[present, :-1].contiguous())]


class _SideBySide(torch.autograd.Function):
    """Combines received and own vectors to [b, F, D].

    Vectors of lists that arrive in parts are added up. Each row is written once, and its gradient
    read once. Autograd's `index_copy` would copy the tensor in forward, and its gradient in
    backward.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        received: Tensor,
        own: Tensor | None,
        output_rows: Tensor,
        own_features: Tensor,
        shape: tuple[int, int],
        in_parts: bool,
    ) -> Tensor:
        ctx.save_for_backward(output_rows, own_features)
        rows, dim = shape[0] * shape[1], received.shape[1]
        if in_parts:
            vectors = ops.sum_by_row(output_rows, received, rows).to(received.dtype)
        else:
            vectors = received.new_empty(rows, dim).index_copy_(0, output_rows, received)
        vectors = vectors.view(*shape, dim)
        return vectors if own is None else vectors.index_copy_(1, own_features, own)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        output_rows, own_features = ctx.saved_tensors  # type: ignore[attr-defined]
        needs_received, needs_own = ctx.needs_input_grad[:2]  # type: ignore[attr-defined]
        flat = gradient.reshape(-1, gradient.shape[-1])
        return (
            flat.index_select(0, output_rows) if needs_received else None,
            gradient.index_select(1, own_features) if needs_own else None,
            *(None, None, None, None),
        )


def _joint(
    embedding_type: str, sizes: Sequence[int], dim: int, storage: EmbeddingStorage
) -> JointRows:
    tables = build_embeddings(
        embedding_type, sizes, dim, hash_indices=False, storage=storage, draws=False
    )
    if not isinstance(tables, JointRows):
        raise UserError(
            f"`embedding_type` {embedding_type} works only on one device; on several devices, use "
            "joint_fused, joint_sparse or joint",
            setting="embedding_type",
        )
    return tables
