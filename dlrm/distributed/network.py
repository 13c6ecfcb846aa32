# SPDX-License-Identifier: Apache-2.0
"""The DLRM network on several ranks: MLPs data-parallel, tables sharded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from dlrm.config import DlrmConfig, ModelConfig
from dlrm.distributed.cost import machine_here, predict, workload_of
from dlrm.distributed.embedding import ShardedEmbeddings
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.placement import Placement
from dlrm.distributed.planner import PlannedPlacement, describe, plan
from dlrm.model.memory import TableRows
from dlrm.model.network import DlrmNetwork
from recsys.data.feature_spec import FeatureSpec
from recsys.train.processes import Processes


class DistributedDlrm(DlrmNetwork[ExchangedLookups]):
    """A rank's DLRM: copies of the MLPs and shards of the tables.

    The exchange of vectors overlaps with the bottom MLP.

    Args:
        config: sizes and variants of the network.
        placement: placement of the tables.
        rank: number of this rank.

    Attributes:
        sharded: this rank's shards of the tables; the same object as `embeddings`.
    """

    def __init__(self, config: ModelConfig, placement: Placement, rank: int) -> None:
        sharded = ShardedEmbeddings(
            placement,
            rank,
            config.embedding_dim,
            config.embedding_type,
            config.embedding_storage,
        )
        super().__init__(config, sharded.table_sizes, lambda _sizes: sharded)
        self.sharded = sharded

    def reset_embeddings(self) -> None:
        """Draws the embeddings anew; copies on several ranks stay equal."""
        super().reset_embeddings()
        self.broadcast_replicated()

    @torch.no_grad()
    def broadcast_replicated(self) -> None:
        """Copies MLPs and replicated tables from rank 0 to all ranks."""
        for parameter in self.mlp_parameters():
            dist.broadcast(parameter.data, 0)
        for table in self.sharded.replicated.stored_tables():
            dist.broadcast(table.values.view(torch.uint8), 0)  # bytes, of any type


def place_tables(
    config: DlrmConfig,
    spec: FeatureSpec,
    processes: Processes,
    device: torch.device,
    print_line: Callable[[str], None],
) -> Placement:
    """Plans or reads the placement of the tables; prints its cost.

    Raises:
        PlacementError: the tables do not fit, or the file does not fit the run.
    """
    table_sizes = config.model.capped(spec.table_sizes)
    machine, workload = machine_here(processes, device), workload_of(config, table_sizes)
    if config.run.placement is not None:
        path = Path(config.run.placement)
        placement = Placement.load(path, table_sizes, processes.world_size)
        planned = PlannedPlacement(placement, predict(placement, workload, machine))
    else:
        planned = plan(workload, machine)
    for line in describe(planned, workload):
        print_line(line)
    return planned.placement


def rows_on(placement: Placement, rank: int, names: Sequence[str]) -> TableRows:
    """Returns the rows of each table on a rank."""
    own = {names[i]: placement.local_rows(i, rank) for i in placement.sharded_on(rank)}
    copies = {names[i]: placement.tables[i].rows for i in placement.of_kind("replicate")}
    return TableRows(own, copies)
