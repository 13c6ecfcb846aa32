# SPDX-License-Identifier: Apache-2.0
"""Embedding tables that several ranks hold together, each what its placement says.

Letters: W ranks, b samples of this rank, F tables, D columns.
"""

import dataclasses
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dlrm.config import EmbeddingStorage
from dlrm.distributed.exchange import ExchangedLookups, VectorExchange, wanted_columns
from dlrm.distributed.placement import Placement
from dlrm.nn.embedding import Embeddings, JointTable, Shard, build_embeddings
from recsys.errors import UserError
from recsys.train.optimizers.rows import RowGradients, StoredTable

_LOCAL, _REPLICATED = 0, 1


class PlacedEmbeddings(Embeddings[ExchangedLookups]):
    """The tables of all features, of which this rank holds a part.

    Args:
        placement: of the tables.
        rank: this one.
        embedding_dim: D.
        embedding_type: of the tables that lie here; a joint one.
        storage: likewise.

    Attributes:
        placement: as given.
        rank: as given.
        local_features: the tables of which rows lie in `local`, in that order.
        local: the joint table of what this rank alone has.
        replicated: the joint table of what every rank has.
    """

    def __init__(
        self,
        placement: Placement,
        rank: int,
        embedding_dim: int,
        embedding_type: str,
        storage: EmbeddingStorage = "float32",
    ) -> None:
        super().__init__([t.rows for t in placement.tables], embedding_dim, hash_indices=False)
        self.placement = placement
        self.rank = rank
        self.local_features = wanted_columns(placement, rank)
        local = [placement.local_rows(i, rank) for i in self.local_features]
        copied = placement.of_kind("replicate")
        sizes = [self.table_sizes[i] for i in copied]
        self.local = _joint(embedding_type, local, embedding_dim, storage)
        self.replicated = _joint(embedding_type, sizes, embedding_dim, storage)
        self._copied: Tensor
        self.register_buffer("_copied", torch.tensor(copied, dtype=torch.int64), persistent=False)

    def prepare(self, ids: ExchangedLookups) -> ExchangedLookups:
        """Looks up the rows for other ranks and starts to send them."""
        device = self._copied.device.type
        is_half = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_half else torch.float32
        return dataclasses.replace(ids, under_way=self._send(ids, dtype))

    def _send(self, ids: ExchangedLookups, dtype: torch.dtype) -> tuple[Tensor, VectorExchange]:
        exchange = VectorExchange(ids.send_counts, ids.receive_counts)
        self.local.trainable = self.trainable
        return exchange.start(self.local.lookup(ids.rows, dtype)), exchange

    def forward(self, ids: ExchangedLookups, dtype: torch.dtype) -> Tensor:
        """Joins the vectors of ranks and of copies: [b, F, D].

        Args:
            ids: of this step; after `prepare` their vectors are on the way already.
            dtype: of the result; the one that `prepare` sends.
        """
        arriving, exchange = ids.under_way or self._send(ids, dtype)
        arrived = exchange.finish(arriving)
        shape = (ids.batch_size * len(self.table_sizes), self.embedding_dim)
        # Every row is filled: from `arrived` here, from the copies below.
        vectors = arrived.new_empty(shape).index_copy_(0, ids.places, arrived)
        vectors = vectors.view(ids.batch_size, len(self.table_sizes), self.embedding_dim)
        if not len(self._copied):
            return vectors
        self.replicated.trainable = self.trainable
        own = self.replicated(ids.replicated, arrived.dtype)
        return vectors.index_copy(1, self._copied, own)

    def shards(self) -> dict[int, Shard]:
        """Returns this rank's own rows, then the copies, which rank 0 saves."""
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

    def stored_tables(self) -> list[StoredTable]:
        """Returns the joint table of this rank, and that of the copies."""
        return [*self.local.stored_tables(), *self.replicated.stored_tables()]

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients of own rows, and of copies summed over ranks."""
        own = [RowGradients(_LOCAL, g.rows, g.gradients) for g in self.local.take_row_gradients()]
        return own + self._summed(self.replicated.take_row_gradients())

    def _summed(self, gradients: Sequence[RowGradients]) -> list[RowGradients]:
        """Sums the gradients of the copies over the rows that ranks met."""
        rows = sum(self.table_sizes[i] for i in self._copied.tolist())
        if not rows or not self.trainable:
            return []
        device = self._copied.device
        # One column more counts who met a row: rules with moments must not see the others.
        total = torch.zeros(rows, self.embedding_dim + 1, device=device)
        for met in gradients:
            index = met.rows.to(torch.int64)
            ones = total.new_ones(len(index), 1)
            total.index_add_(0, index, torch.cat([met.gradients.to(total.dtype), ones], dim=1))
        dist.all_reduce(total)
        rows_met = total[:, -1].nonzero().squeeze(1)
        return [RowGradients(_REPLICATED, rows_met, total[rows_met, :-1].contiguous())]


def _joint(
    embedding_type: str, sizes: Sequence[int], dim: int, storage: EmbeddingStorage
) -> JointTable:
    tables = build_embeddings(embedding_type, sizes, dim, hash_indices=False, storage=storage)
    if not isinstance(tables, JointTable):
        raise UserError(
            f"`embedding_type` {embedding_type} is for one device; on several take joint_fused, "
            "joint_sparse or joint"
        )
    return tables
