# SPDX-License-Identifier: Apache-2.0
"""The DLRM network on several ranks: MLPs data-parallel, tables sharded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from dlrm.config import DlrmConfig, ModelConfig
from dlrm.distributed.cost import machine_here, predict, workload_of
from dlrm.distributed.embedding import ShardedEmbeddings
from dlrm.distributed.exchange import ExchangedLookups, sharded_features
from dlrm.distributed.placement import Placement
from dlrm.distributed.planner import PlannedPlacement, describe, plan
from dlrm.model.memory import TableRows, trained_memory
from dlrm.model.network import DlrmNetwork
from recsys.data.feature_spec import FeatureSpec
from recsys.train.memory import require_memory
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

    @torch.no_grad()
    def broadcast_replicated(self) -> None:
        """Copies MLPs and replicated tables from rank 0 to all ranks."""
        for parameter in self.mlp_parameters():
            dist.broadcast(parameter.data, 0)
        for table in self.sharded.replicated.stored_tables():
            dist.broadcast(table.values.view(torch.uint8), 0)  # bytes, of any type


def build_distributed(
    config: DlrmConfig,
    spec: FeatureSpec,
    processes: Processes,
    device: torch.device,
    print_line: Callable[[str], None],
) -> DistributedDlrm:
    """Plans or reads the placement and builds this rank's model.

    MLPs and replicated tables start equal on all ranks.

    Raises:
        PlacementError: the tables do not fit, or the file does not fit the run.
        OutOfMemoryError: the model does not fit in memory.
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
    names = [feature.name for feature in spec.categorical]
    rows = _rows_here(planned.placement, processes.rank, names)
    require_memory(trained_memory(config, rows, len(names)), device, processes)
    torch.manual_seed(config.run.seed + processes.rank)
    model = DistributedDlrm(config.model, planned.placement, processes.rank)
    model.broadcast_replicated()
    return model


def _rows_here(placement: Placement, rank: int, names: Sequence[str]) -> TableRows:
    own = {names[i]: placement.local_rows(i, rank) for i in sharded_features(placement, rank)}
    copies = {names[i]: placement.tables[i].rows for i in placement.of_kind("replicate")}
    return TableRows(own, copies)
