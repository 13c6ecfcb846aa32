# SPDX-License-Identifier: Apache-2.0
"""The DLRM network on several ranks: MLPs on each of them, tables where they are placed."""

import torch
import torch.distributed as dist
from torch import Tensor

from dlrm.config import ModelConfig
from dlrm.distributed.embedding import PlacedEmbeddings
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.placement import Placement
from dlrm.model.network import Dlrm


class DistributedDlrm(Dlrm):
    """A rank's part of a DLRM.

    Args:
        config: sizes and kinds of the parts.
        placement: of the tables.
        rank: this one.

    Attributes:
        placed: the tables, of which this rank holds a part.
    """

    def __init__(self, config: ModelConfig, placement: Placement, rank: int) -> None:
        placed = PlacedEmbeddings(
            placement,
            rank,
            config.embedding_dim,
            config.embedding_type,
            config.embedding_storage,
        )
        super().__init__(config, placed.table_sizes, placed)
        self.placed = placed

    @torch.no_grad()
    def agree(self) -> None:
        """Gives every rank the first one's weights of what all of them have."""
        for parameter in self.mlp_parameters():
            dist.broadcast(parameter.data, 0)
        for table in self.placed.replicated.stored_tables():
            for part in (table.values, table.low):
                if part is not None:
                    dist.broadcast(part, 0)

    def forward(self, numerical: Tensor, ids: ExchangedLookups) -> Tensor:  # type: ignore[override]
        """Scores the samples of this rank.

        Args:
            numerical: [b, M] floating point, transformed features.
            ids: what this rank looks up for all, and receives.

        Returns:
            [b] logits of a click, float32 (or the autocast dtype).
        """
        device = numerical.device.type
        is_half = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_half else torch.float32
        # The vectors travel while the bottom MLP works.
        started = self.placed.start(ids, dtype)
        if self.num_numerical_features == 0:
            numerical = torch.ones(ids.batch_size, 1, device=numerical.device)
        bottom = self._run_bottom(numerical.to(torch.float32))
        features = self.interaction(bottom, self.placed.finish(ids, started))
        logits: Tensor = self._run_top(features).squeeze(1)
        return logits
