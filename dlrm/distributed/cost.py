# SPDX-License-Identifier: Apache-2.0
"""Predicted cost of a distributed step: bytes, seconds, memory by rank.

A model to compare placements with and to plan for machines that are not there. Every figure it
needs is a field, so that it can be replaced by a measured one.
Letters: W ranks, B samples of all ranks, D columns.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import DlrmConfig
from dlrm.distributed.placement import Placement
from recsys.data.feature_spec import index_dtype
from recsys.train.processes import Processes

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The devices of a run.

    Attributes:
        world_size: W.
        ranks_per_node: devices that the fast links join.
        memory_bytes: of a device, all of it.
        reserved_share: of the memory, for activations, workspaces and the allocator.
        memory_bytes_per_s: of a device, as a table lookup reaches it.
        node_bytes_per_s: out of a device to others of its node.
        network_bytes_per_s: out of a device to other nodes.
        flop_per_s: of the matrix products, as training reaches it.
        latency_s: of one collective.
        overlap: share of the communication that hides behind computation.
    """

    world_size: int
    ranks_per_node: int
    memory_bytes: float
    reserved_share: float = 0.1
    memory_bytes_per_s: float
    node_bytes_per_s: float
    network_bytes_per_s: float
    flop_per_s: float
    latency_s: float = 20e-6
    overlap: float = 0.5

    @property
    def table_bytes(self) -> float:
        """Bytes of a device that tables may fill."""
        return self.memory_bytes * (1 - self.reserved_share)

    def exchange_s(self, bytes_out: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns the seconds of an exchange of every rank with every other.

        Args:
            bytes_out: [W], bytes that leave (or reach) each rank, the same share for each peer.
        """
        if self.world_size == 1:
            return np.zeros_like(bytes_out)
        near = min(self.ranks_per_node, self.world_size) - 1
        far = self.world_size - 1 - near
        share_far = far / (self.world_size - 1)
        seconds = np.maximum(
            bytes_out * (1 - share_far) / self.node_bytes_per_s,
            bytes_out * share_far / self.network_bytes_per_s,
        )
        return seconds + self.latency_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """The work of a step under any placement.

    Attributes:
        table_sizes: rows of each table.
        embedding_dim: D.
        global_batch: B.
        weight_bytes: of an element of a table.
        state_bytes_per_row: of the optimizer of the tables.
        wire_bytes: of an element of a vector that travels.
        unique_share: of the looked-up rows that differ, which the update writes.
        dense_parameters: of the MLPs and the interaction.
        dense_flop: of a sample, forward and backward.
        dense_activation_bytes: of a sample, all traffic of the dense part.
    """

    table_sizes: tuple[int, ...]
    embedding_dim: int
    global_batch: int
    weight_bytes: int = 4
    state_bytes_per_row: int = 0
    wire_bytes: int = 4
    unique_share: float = 0.15
    dense_parameters: int
    dense_flop: float
    dense_activation_bytes: float

    @classmethod
    def of_network(
        cls,
        table_sizes: Sequence[int],
        *,
        num_numerical: int,
        bottom_mlp_sizes: Sequence[int],
        top_mlp_sizes: Sequence[int],
        embedding_dim: int,
        global_batch: int,
        **sizes: float,
    ) -> "Workload":
        """Counts the work of a DLRM with dot interactions.

        Args:
            table_sizes: rows of each table.
            num_numerical: numerical features.
            bottom_mlp_sizes: outputs of each layer.
            top_mlp_sizes: likewise.
            embedding_dim: D.
            global_batch: B.
            sizes: further fields.
        """
        features = len(table_sizes) + 1
        joined = embedding_dim + features * (features - 1) // 2
        products = parameters = 0
        for layers in (
            (max(num_numerical, 1), *bottom_mlp_sizes),
            (joined, *top_mlp_sizes),
        ):
            for inputs, outputs in itertools.pairwise(layers):
                products += inputs * outputs
                parameters += (inputs + 1) * outputs
        interaction = features * (features - 1) // 2 * embedding_dim
        # Inputs and outputs of each layer, in two bytes: forward, and twice in the backward pass.
        values = sum(bottom_mlp_sizes) + sum(top_mlp_sizes) + joined + features * embedding_dim
        return cls(
            table_sizes=tuple(table_sizes),
            embedding_dim=embedding_dim,
            global_batch=global_batch,
            dense_parameters=parameters,
            dense_flop=6.0 * (products + interaction),
            dense_activation_bytes=2.0 * 2 * 3 * values,
            **sizes,  # type: ignore[arg-type]
        )

    def table_bytes(self, rows: int) -> int:
        """Returns the bytes of that many rows with what their optimizer keeps."""
        return rows * (self.embedding_dim * self.weight_bytes + self.state_bytes_per_row)


@dataclasses.dataclass(frozen=True, slots=True)
class StepCost:
    """Costs of a step by rank: [W] arrays.

    Attributes:
        table_bytes: of memory.
        lookups: rows read.
        id_bytes: of ids that it reads from split binary: of its own samples for tables that all
            have, of the whole batch for those of which it alone has rows.
        vectors_out: bytes of vectors that leave it, forward; as many gradients come back.
        compute_s: lookups, updates and the dense part.
        exchange_s: of vectors and their gradients, and of the gradients that all ranks share.
        step_s: of the step, with the overlap that the machine allows.
    """

    table_bytes: npt.NDArray[np.float64]
    lookups: npt.NDArray[np.float64]
    id_bytes: npt.NDArray[np.float64]
    vectors_out: npt.NDArray[np.float64]
    compute_s: npt.NDArray[np.float64]
    exchange_s: npt.NDArray[np.float64]
    step_s: npt.NDArray[np.float64]

    @property
    def seconds(self) -> float:
        """Of the step: ranks wait for the slowest."""
        return float(self.step_s.max())

    @property
    def imbalance(self) -> float:
        """Excess of the slowest rank over the mean, relative to the mean."""
        return float(self.step_s.max() / self.step_s.mean() - 1)


def predict(placement: Placement, workload: Workload, machine: Machine) -> StepCost:
    """Returns what a step costs under a placement."""
    ranks, batch, dim = placement.world_size, workload.global_batch, workload.embedding_dim
    local = batch / ranks
    memory, lookups, id_bytes, out, into = np.zeros((5, ranks))
    vector = dim * workload.wire_bytes
    shared_rows = 0
    for i, table in enumerate(placement.tables):
        held = [placement.local_rows(i, rank) for rank in range(ranks)]
        memory += [workload.table_bytes(rows) for rows in held]
        width = index_dtype(table.rows).itemsize
        if table.kind == "whole":
            assert table.rank is not None
            lookups[table.rank] += batch
            id_bytes[table.rank] += batch * width
            out[table.rank] += (batch - local) * vector
            into += local * vector
            into[table.rank] -= local * vector
            continue
        lookups += local
        id_bytes += width * (batch if table.kind == "rows" else local)
        if table.kind == "rows":
            out += local * vector * (ranks - 1) / ranks
            into += local * vector * (ranks - 1) / ranks
        else:
            shared_rows += table.rows
    row = dim * workload.weight_bytes
    touched = lookups * (row + vector + 2 * row * workload.unique_share + vector)
    compute = touched / machine.memory_bytes_per_s + local * (
        workload.dense_flop / machine.flop_per_s
        + workload.dense_activation_bytes / machine.memory_bytes_per_s
    )
    # A ring sends all but its own share twice: to add up, and to tell.
    shared = (shared_rows * dim + workload.dense_parameters) * 4 * 2 * (ranks - 1) / ranks
    exchange = 2 * machine.exchange_s(np.maximum(out, into)) + machine.exchange_s(
        np.full(ranks, float(shared))
    )
    step = compute + exchange * (1 - machine.overlap)
    return StepCost(memory, lookups, id_bytes, out, compute, exchange, step)


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
    """Returns the devices of this run with typical, not measured, rates."""
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
