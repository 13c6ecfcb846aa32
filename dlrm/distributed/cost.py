# SPDX-License-Identifier: Apache-2.0
"""Predicts bytes, seconds and memory of a distributed training step.

The prediction compares placements, also for machines that are not available. Every rate is a field,
so that a measured rate can replace it.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlrm.config import ModelConfig
from dlrm.distributed.placement import Placement
from recsys.data.feature_spec import index_dtype

GIB = 2**30

_PASSES_OVER_REPLICATED = 4
"""How often a step reads or writes the summed gradient of all rows of replicated tables.

The step zeroes it, reads and writes it in the all-reduce, and searches it for looked-up rows.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Number, memory and speed of the devices of a run.

    Attributes:
        world_size: number of ranks, one device each.
        ranks_per_node: number of devices connected by fast links.
        memory_bytes: total memory of a device.
        reserved_fraction: fraction of the memory for activations, workspaces and the allocator.
        memory_bytes_per_s: memory bandwidth of a device, as reached by table lookups.
        node_bytes_per_s: bandwidth from a device to others in its node.
        network_bytes_per_s: bandwidth from a device to other nodes.
        flop_per_s: speed of matrix products, as reached in training.
        latency_s: seconds of an empty collective.
        overlap: fraction of the communication that overlaps with computation.
    """

    world_size: int
    ranks_per_node: int
    memory_bytes: float
    reserved_fraction: float = 0.1
    memory_bytes_per_s: float
    node_bytes_per_s: float
    network_bytes_per_s: float
    flop_per_s: float
    latency_s: float = 20e-6
    overlap: float = 0.5

    @property
    def table_bytes(self) -> float:
        """Bytes available on a device for tables and their optimizer state."""
        return self.memory_bytes * (1 - self.reserved_fraction)

    def exchange_s(self, bytes_out: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Predicts the seconds of an all-to-all on each rank: [W].

        Args:
            bytes_out: [W] bytes that each rank sends (or receives), spread evenly over the others.
        """
        if self.world_size == 1:
            return np.zeros_like(bytes_out)
        near = min(self.ranks_per_node, self.world_size) - 1
        far = self.world_size - 1 - near
        fraction_far = far / (self.world_size - 1)
        seconds = np.maximum(
            bytes_out * (1 - fraction_far) / self.node_bytes_per_s,
            bytes_out * fraction_far / self.network_bytes_per_s,
        )
        return seconds + self.latency_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Sizes of a training step that do not depend on the placement.

    Attributes:
        table_sizes: rows of each table.
        embedding_dim: D, columns of a table.
        global_batch: B, samples of a step over all ranks.
        weight_bytes: bytes of a number in a table.
        state_bytes_per_row: bytes of the optimizer state of a row.
        wire_bytes: bytes of a number in an exchanged vector.
        unique_share: distinct rows per lookup, in (0, 1]; the update writes each once.
        dense_parameters: number of parameters of MLPs and interaction.
        dense_flop: operations per sample of MLPs and interaction, forward and backward.
        dense_activation_bytes: memory traffic per sample of MLPs and interaction.
    """

    table_sizes: tuple[int, ...]
    embedding_dim: int
    global_batch: int
    weight_bytes: int
    state_bytes_per_row: int
    wire_bytes: int
    unique_share: float = 0.15
    dense_parameters: int
    dense_flop: float
    dense_activation_bytes: float

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        table_sizes: Sequence[int],
        global_batch: int,
        *,
        state_bytes_per_row: int = 0,
        wire_bytes: int = 4,
    ) -> "Workload":
        """Computes the workload of a DLRM with dot interactions."""
        dim = model.row_dim
        features = model.num_vectors(len(table_sizes))
        joined = model.embedding_dim + features * (features - 1) // 2
        products = parameters = 0
        for layers in (
            (max(model.num_numerical_features, 1), *model.bottom_mlp_sizes),
            (joined, *model.top_mlp_sizes),
        ):
            for inputs, outputs in itertools.pairwise(layers):
                products += inputs * outputs * model.seeds
                parameters += (inputs + 1) * outputs * model.seeds
        interaction = features * (features - 1) // 2 * dim
        # Inputs and outputs of each layer, in two bytes: once forward, twice backward.
        of_layers = sum(model.bottom_mlp_sizes) + sum(model.top_mlp_sizes) + joined
        values = of_layers * model.seeds + features * dim
        return cls(
            table_sizes=tuple(table_sizes),
            embedding_dim=dim,
            global_batch=global_batch,
            weight_bytes=model.weight_bytes,
            state_bytes_per_row=state_bytes_per_row,
            wire_bytes=wire_bytes,
            dense_parameters=parameters,
            dense_flop=6.0 * (products + interaction),
            dense_activation_bytes=2.0 * 2 * 3 * values,
        )

    def table_bytes(self, rows: int) -> int:
        """Returns the size in bytes of `rows` rows with their optimizer state."""
        return rows * (self.embedding_dim * self.weight_bytes + self.state_bytes_per_row)


@dataclasses.dataclass(frozen=True, slots=True)
class StepCost:
    """Predicted costs of a step on each rank: [W] float64 arrays.

    Attributes:
        table_bytes: bytes of tables and their optimizer state.
        lookups: rows read from tables.
        id_bytes: bytes of ids read from split binary: those of the local batch for replicated
            tables, those of the whole batch for tables whose shards the rank stores.
        vectors_out: bytes of vectors sent forward; as many bytes of gradients come back.
        compute_s: seconds of lookups, updates, MLPs and interaction.
        exchange_s: seconds of the exchange of vectors and gradients and of the all-reduce.
        step_s: seconds of the step, with the overlap that the machine allows.
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
        """Seconds of the step on the slowest rank, for which all others wait."""
        return float(self.step_s.max())

    @property
    def imbalance(self) -> float:
        """Time of the slowest rank divided by the mean, minus 1."""
        return float(self.step_s.max() / self.step_s.mean() - 1)

    def describe(self, placement: Placement, workload: Workload) -> list[str]:
        """Formats the costs as a Markdown table with a row per rank, and totals."""
        counts = Counter(table.kind for table in placement.tables)
        ranks = placement.world_size
        lines = [
            f"{len(placement.tables)} tables on {ranks} ranks: {counts['replicate']} replicated, "
            f"{counts['whole']} whole, {counts['rows']} spread by rows",
            "| rank | whole tables | GiB of tables | lookups | KiB sent | compute ms | exchange ms "
            "| step ms |",
            "|---" * 8 + "|",
        ]
        for rank in range(ranks):
            whole = ",".join(map(str, placement.whole_on(rank))) or "none"
            lines.append(
                f"| {rank} | {whole} | {self.table_bytes[rank] / GIB:.2f} | "
                f"{self.lookups[rank]:,.0f} | {self.vectors_out[rank] / 1024:,.0f} | "
                f"{self.compute_s[rank] * 1e3:.3f} | {self.exchange_s[rank] * 1e3:.3f} | "
                f"{self.step_s[rank] * 1e3:.3f} |"
            )
        sent = 2 * self.vectors_out.sum() / workload.global_batch
        ids = self.id_bytes.max() / workload.global_batch
        lines.append(
            f"predicted: {workload.global_batch / self.seconds:,.0f} samples/s, "
            f"{self.seconds * 1e3:.3f} ms per step; the slowest rank takes "
            f"{self.imbalance:.1%} longer than the mean; {sent:,.0f} bytes of vectors and their "
            f"gradients are exchanged per sample; a rank reads up to {ids:.1f} bytes of ids per "
            "sample"
        )
        return lines


def predict(placement: Placement, workload: Workload, machine: Hardware) -> StepCost:
    """Predicts the costs of a training step under a placement."""
    ranks, batch, dim = placement.world_size, workload.global_batch, workload.embedding_dim
    local = batch / ranks
    memory, lookups, id_bytes, out, into = np.zeros((5, ranks))
    vector = dim * workload.wire_bytes
    replicated_rows = 0
    for i, table in enumerate(placement.tables):
        shard_rows = [placement.local_rows(i, rank) for rank in range(ranks)]
        memory += [workload.table_bytes(rows) for rows in shard_rows]
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
            replicated_rows += table.rows
    row = dim * workload.weight_bytes
    touched = lookups * (row + vector + 2 * row * workload.unique_share + vector)
    touched += _PASSES_OVER_REPLICATED * replicated_rows * dim * 4
    compute = touched / machine.memory_bytes_per_s + local * (
        workload.dense_flop / machine.flop_per_s
        + workload.dense_activation_bytes / machine.memory_bytes_per_s
    )
    # A ring all-reduce sends (W - 1) / W of the bytes twice: to reduce and to broadcast.
    all_reduced = (replicated_rows * dim + workload.dense_parameters) * 4 * 2 * (ranks - 1) / ranks
    exchange = 2 * machine.exchange_s(np.maximum(out, into)) + machine.exchange_s(
        np.full(ranks, float(all_reduced))
    )
    step = compute + exchange * (1 - machine.overlap)
    return StepCost(memory, lookups, id_bytes, out, compute, exchange, step)
