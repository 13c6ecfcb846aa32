# SPDX-License-Identifier: Apache-2.0
"""The DLRM network on several ranks: MLPs on each of them, tables where they are placed."""

import torch
import torch.distributed as dist

from dlrm.config import ModelConfig
from dlrm.distributed.embedding import PlacedEmbeddings
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.placement import Placement
from dlrm.model.network import DlrmNetwork


class DistributedDlrm(DlrmNetwork[ExchangedLookups]):
    """A DLRM of which a rank has the MLPs and its shards of the tables.

    The vectors of other ranks travel while the bottom MLP works.

    Args:
        config: sizes and kinds of the parts.
        placement: of the tables.
        rank: this one.

    Attributes:
        placed: the tables, of which this rank has some.
    """

    def __init__(self, config: ModelConfig, placement: Placement, rank: int) -> None:
        placed = PlacedEmbeddings(
            placement,
            rank,
            config.embedding_dim,
            config.embedding_type,
            config.embedding_storage,
        )
        super().__init__(config, placed.table_sizes, lambda _sizes: placed)
        self.placed = placed

    @torch.no_grad()
    def agree(self) -> None:
        """Gives every rank the first one's weights of what all of them have."""
        for parameter in self.mlp_parameters():
            dist.broadcast(parameter.data, 0)
        for table in self.placed.replicated.stored_tables():
            for tensor in (table.values, table.low):
                if tensor is not None:
                    dist.broadcast(tensor, 0)
