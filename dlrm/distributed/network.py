# SPDX-License-Identifier: Apache-2.0
"""The DLRM network on several ranks: MLPs data-parallel, tables sharded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import DlrmConfig, ModelConfig
from dlrm.distributed.cost import Hardware, Workload
from dlrm.distributed.embedding import ShardedEmbeddings
from dlrm.distributed.exchange import ExchangedLookups
from dlrm.distributed.placement import Placement
from dlrm.distributed.planner import plan
from dlrm.model.network import DlrmNetwork
from recsys.data.feature_spec import FeatureSpec
from recsys.resources import memory_limits
from recsys.train.processes import Processes


class DistributedDlrm(DlrmNetwork[ExchangedLookups]):
    """A rank's DLRM: copies of the MLPs and shards of the tables.

    The exchange of vectors overlaps with the bottom MLP.

    Args:
        config: sizes and variants of the network.
        placement: placement of the tables.
        rank: number of this rank.
        has_lists: whether features may be lists.
        draws: whether to draw random values of the tables.

    Attributes:
        sharded: this rank's shards of the tables; the same object as `embeddings`.
    """

    def __init__(
        self,
        config: ModelConfig,
        placement: Placement,
        rank: int,
        *,
        has_lists: bool = False,
        draws: bool = True,
    ) -> None:
        sharded = ShardedEmbeddings(
            placement,
            rank,
            config.row_dim,
            config.embedding_type,
            config.embedding_storage,
            has_lists=has_lists,
            init_std=config.embedding_init,
            draws=draws,
        )
        super().__init__(config, sharded.table_sizes, lambda _sizes: sharded)
        self.sharded = sharded

    def add_in_shards(self, num_shards: int) -> None:
        """Adds up the gradients of replicated rows in the same order too."""
        super().add_in_shards(num_shards)
        self.sharded.adds_by_lookup = True

    def reset_embeddings(self) -> None:
        """Initialises the embeddings again; copies on several ranks stay equal."""
        super().reset_embeddings()
        self.broadcast_replicated()

    @torch.no_grad()
    def broadcast_replicated(self) -> None:
        """Copies MLPs and replicated tables from rank 0 to all ranks."""
        for parameter in self.mlp_parameters():
            dist.broadcast(parameter.data, 0)
        for table in self.sharded.replicated.stored_tables():
            dist.broadcast(table.view(torch.uint8), 0)  # bytes, of any type


def workload_of(config: DlrmConfig, table_sizes: Sequence[int]) -> Workload:
    """Computes the workload of a run's training step."""
    return Workload.of(
        config.model,
        table_sizes,
        config.data.batch_size,
        state_bytes_per_row=ROW_RULES[config.optimizer.optimizer].state_bytes_per_row(
            config.model.row_dim
        ),
        wire_bytes=2 if config.precision.amp else 4,
    )


def hardware_here(processes: Processes, device: torch.device) -> Hardware:
    """Returns the devices of this run, with typical rates."""
    per_node = processes.on_this_machine
    if device.type == "cuda":
        memory = float(torch.cuda.get_device_properties(device).total_memory)
        rates = {"memory": 2e12, "node": 300e9, "network": 40e9, "flop": 2e14, "latency": 2e-5}
    else:
        memory = memory_limits()[0].available / per_node
        rates = {"memory": 1e10, "node": 2e9, "network": 1e9, "flop": 5e10, "latency": 2e-4}
    return Hardware(
        world_size=processes.world_size,
        ranks_per_node=per_node,
        # All ranks plan with the same memory: it may differ between machines, the plan must not.
        memory_bytes=min(processes.gather_values(memory)),
        memory_bytes_per_s=rates["memory"],
        node_bytes_per_s=rates["node"],
        network_bytes_per_s=rates["network"],
        flop_per_s=rates["flop"],
        latency_s=rates["latency"],
    )


def place_tables(
    config: DlrmConfig,
    spec: FeatureSpec,
    processes: Processes,
    device: torch.device,
    print_line: Callable[[str], None],
) -> Placement:
    """Plans or reads the placement of the tables; prints its cost.

    Raises:
        PlacementError: the tables do not fit, or the placement file does not match the run.
    """
    table_sizes = config.model.capped(spec.table_sizes)
    workload, machine = workload_of(config, table_sizes), hardware_here(processes, device)
    path, given = config.run.placement, None
    if path is not None:
        given = Placement.load(Path(path), table_sizes, processes.world_size)
    planned = plan(workload, machine, given)
    for line in planned.cost.describe(planned.placement, workload):
        print_line(line)
    return planned.placement
