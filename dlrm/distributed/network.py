# SPDX-License-Identifier: Apache-2.0
"""The DLRM network on several ranks: MLPs on each, tables sharded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from dlrm.config import DlrmConfig, ModelConfig
from dlrm.distributed.cost import machine_here, predict, workload_of
from dlrm.distributed.embedding import PlacedEmbeddings
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.placement import Placement
from dlrm.distributed.planner import PlannedPlacement, describe, plan
from dlrm.model.network import DlrmNetwork
from recsys.train.processes import Processes


class DistributedDlrm(DlrmNetwork[ExchangedLookups]):
    """A rank's DLRM: all MLPs, and its shards of the tables.

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
        """Broadcasts rank 0's weights of what all ranks have."""
        for parameter in self.mlp_parameters():
            dist.broadcast(parameter.data, 0)
        for table in self.placed.replicated.stored_tables():
            for tensor in (table.values, table.low):
                if tensor is not None:
                    dist.broadcast(tensor, 0)


def build_distributed(
    config: DlrmConfig,
    table_sizes: Sequence[int],
    processes: Processes,
    device: torch.device,
    announce: Callable[[str], None],
) -> DistributedDlrm:
    """Returns this rank's model; what all ranks have is equal on them.

    Raises:
        PlacementError: the tables do not fit, or the file does not fit the run.
    """
    if config.model.max_table_size is not None:
        table_sizes = [min(n, config.model.max_table_size) for n in table_sizes]
    machine, workload = machine_here(processes, device), workload_of(config, table_sizes)
    if config.run.placement is not None:
        path = Path(config.run.placement)
        placement = Placement.load(path, table_sizes, processes.world_size)
        planned = PlannedPlacement(placement, predict(placement, workload, machine))
    else:
        # The first one's: free memory may differ between machines, the plan must not.
        planned = processes.gather_values(plan(workload, machine))[0]
    for line in describe(planned, workload):
        announce(line)
    torch.manual_seed(config.run.seed + processes.rank)
    model = DistributedDlrm(config.model, planned.placement, processes.rank)
    model.agree()
    return model
