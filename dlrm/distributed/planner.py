# SPDX-License-Identifier: Apache-2.0
"""Plans the placement of tables that makes a step fastest."""

import dataclasses
from collections import Counter

import numpy as np

from dlrm.distributed.cost import GIB, Machine, StepCost, Workload, predict
from dlrm.distributed.placement import Placement, PlacementError, PlacementKind, TablePlacement


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedPlacement:
    """A placement and its predicted cost."""

    placement: Placement
    cost: StepCost


def plan(workload: Workload, machine: Machine) -> PlannedPlacement:
    """Chooses the placement with the shortest predicted step that fits.

    A table is replicated if the gradient of all its rows is fewer bytes than the vectors of a
    batch. Of the others, for every n, the n largest are row-wise and the rest table-wise, each on
    the rank with the fewest tables so far. The n with the shortest step wins, the smallest of
    equals.

    Raises:
        PlacementError: no placement fits; the message says how many devices are needed.
    """
    sizes = workload.table_sizes
    replicated = [_is_better_replicated(rows, workload, machine.world_size) for rows in sizes]
    by_size = sorted(
        (i for i, everywhere in enumerate(replicated) if not everywhere),
        key=lambda i: (-sizes[i], i),
    )
    best: PlannedPlacement | None = None
    for by_rows in range(len(by_size) + 1):
        spread = set(by_size[:by_rows])
        kinds: list[PlacementKind] = [
            "replicate" if replicated[i] else "rows" if i in spread else "whole"
            for i in range(len(sizes))
        ]
        planned = _try(kinds, workload, machine)
        # A margin of one millionth, so that rounding does not decide.
        if planned and (best is None or planned.cost.seconds < best.cost.seconds * (1 - 1e-6)):
            best = planned
    if best is None:
        raise PlacementError(_too_large(workload, machine))
    return best


def _is_better_replicated(rows: int, workload: Workload, ranks: int) -> bool:
    if ranks == 1:
        return False
    gradient = rows * workload.embedding_dim * 4 * 2
    vectors = workload.global_batch / ranks * workload.embedding_dim * workload.wire_bytes * 2
    return gradient <= vectors


def _try(
    kinds: list[PlacementKind], workload: Workload, machine: Machine
) -> PlannedPlacement | None:
    """Assigns table-wise tables to ranks; returns None if they do not fit."""
    ranks = machine.world_size
    sizes = workload.table_sizes
    owners: dict[int, int] = {}
    free = np.full(ranks, machine.table_bytes)
    count = np.zeros(ranks, np.int64)
    for rows, kind in zip(sizes, kinds, strict=True):
        if kind != "whole":
            free -= workload.table_bytes(rows if kind == "replicate" else -(-rows // ranks))
    whole = [i for i, kind in enumerate(kinds) if kind == "whole"]
    for i in sorted(whole, key=lambda i: (-sizes[i], i)):
        size = workload.table_bytes(sizes[i])
        fitting = [r for r in range(ranks) if free[r] >= size]
        if not fitting:
            return None
        # Every table is looked up equally often: balance their number, then the memory.
        owners[i] = rank = min(fitting, key=lambda r: (count[r], -free[r], r))
        free[rank] -= size
        count[rank] += 1
    if free.min() < 0:
        return None
    tables = (
        TablePlacement(rows, kind, owners.get(i))
        for i, (rows, kind) in enumerate(zip(sizes, kinds, strict=True))
    )
    placement = Placement(ranks, tuple(tables))
    return PlannedPlacement(placement, predict(placement, workload, machine))


def _too_large(workload: Workload, machine: Machine) -> str:
    sizes = {f"table {i}": workload.table_bytes(n) for i, n in enumerate(workload.table_sizes)}
    needed = sum(sizes.values())
    devices = int(-(-needed // machine.table_bytes))
    largest = sorted(sizes.items(), key=lambda table: -table[1])[:3]
    named = ", ".join(f"{name} {size / GIB:,.1f} GiB" for name, size in largest)
    return (
        f"the tables need {needed / GIB:,.1f} GiB with the state of their optimizer "
        f"(the largest: {named}), "
        f"{machine.world_size} x {machine.memory_bytes / GIB:,.1f} GiB leave "
        f"{machine.world_size * machine.table_bytes / GIB:,.1f} GiB for them: take at least "
        f"{devices} such devices, or make the tables smaller (`max_table_size` with "
        "`hash_indices`, `embedding_storage` bfloat16, `optimizer` sgd, which keeps "
        "no state, a higher `frequency_limit` when the dataset is prepared)"
    )


def describe(planned: PlannedPlacement, workload: Workload) -> list[str]:
    """Formats a plan as a Markdown table by rank, and totals."""
    placement, cost = planned.placement, planned.cost
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
            f"| {rank} | {whole} | {cost.table_bytes[rank] / GIB:.2f} | "
            f"{cost.lookups[rank]:,.0f} | {cost.vectors_out[rank] / 1024:,.0f} | "
            f"{cost.compute_s[rank] * 1e3:.3f} | {cost.exchange_s[rank] * 1e3:.3f} | "
            f"{cost.step_s[rank] * 1e3:.3f} |"
        )
    sent = 2 * cost.vectors_out.sum() / workload.global_batch
    ids = cost.id_bytes.max() / workload.global_batch
    lines.append(
        f"predicted: {workload.global_batch / cost.seconds:,.0f} samples/s, "
        f"{cost.seconds * 1e3:.3f} ms a step; the slowest rank takes "
        f"{cost.imbalance:.1%} longer than the mean; {sent:,.0f} bytes of vectors and their "
        f"gradients exchanged per sample; a rank reads up to {ids:.1f} bytes of ids per sample"
    )
    return lines
