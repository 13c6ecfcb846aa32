# SPDX-License-Identifier: Apache-2.0
"""Places the tables of a run on its processes, by file or by plan."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import DlrmConfig
from dlrm.distributed.cost import Machine, Workload, predict
from dlrm.distributed.network import DistributedDlrm
from dlrm.distributed.placement import Placement
from dlrm.distributed.planner import PlannedPlacement, plan
from dlrm.distributed.report import describe
from recsys.train.processes import Processes


def build_distributed(
    config: DlrmConfig,
    table_sizes: Sequence[int],
    processes: Processes,
    device: torch.device,
    announce: Callable[[str], None],
) -> DistributedDlrm:
    """Returns this process's part of the model, with weights that all agree on.

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


def workload_of(config: DlrmConfig, table_sizes: Sequence[int]) -> Workload:
    """Returns what a step of a run has to do."""
    model = config.model
    rule = ROW_RULES[config.optimizer.embedding_rule]
    return Workload.of_network(
        table_sizes,
        num_numerical=model.num_numerical_features,
        bottom_mlp_sizes=model.bottom_mlp_sizes,
        top_mlp_sizes=model.top_mlp_sizes,
        embedding_dim=model.embedding_dim,
        global_batch=config.data.batch_size,
        weight_bytes=2 if model.embedding_storage == "bfloat16" else 4,
        state_bytes_per_row=rule.state_bytes_per_row(model.embedding_dim),
        wire_bytes=2 if config.precision.amp else 4,
    )


def machine_here(processes: Processes, device: torch.device) -> Machine:
    """Returns the devices of this run, with rates of their kind rather than measured ones."""
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(processes.world_size)))
    if device.type == "cuda":
        memory = float(torch.cuda.get_device_properties(device).total_memory)
        rates = {"memory": 2e12, "node": 300e9, "network": 40e9, "flop": 2e14, "latency": 2e-5}
    else:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / per_node
        rates = {"memory": 1e10, "node": 2e9, "network": 1e9, "flop": 5e10, "latency": 2e-4}
    return Machine(
        world_size=processes.world_size,
        ranks_per_node=per_node,
        memory_bytes=memory,
        memory_bytes_per_s=rates["memory"],
        node_bytes_per_s=rates["node"],
        network_bytes_per_s=rates["network"],
        flop_per_s=rates["flop"],
        latency_s=rates["latency"],
    )
