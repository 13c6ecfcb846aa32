# SPDX-License-Identifier: Apache-2.0
"""Plans the placement of tables with the fastest step."""

import dataclasses

import numpy as np

from dlrm.distributed.cost import GIB, Hardware, StepCost, Workload, predict
from dlrm.distributed.placement import Placement, PlacementError, PlacementKind, TablePlacement


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedPlacement:
    """A placement and its predicted cost."""

    placement: Placement
    cost: StepCost


def plan(workload: Workload, machine: Hardware, given: Placement | None = None) -> PlannedPlacement:
    """Chooses the placement with the shortest predicted step among those that fit.

    A table is replicated if the gradient of all its rows has at most as many bytes as its vectors
    of a batch. For the other tables, it tries every n: the n largest are row-wise and the rest
    table-wise, each on the rank with the fewest tables so far. It chooses the n with the shortest
    step, the smallest if several are equal.

    Args:
        workload: sizes of the step.
        machine: devices of the run.
        given: the placement to use, even if it does not fit; None plans one.

    Raises:
        PlacementError: no placement fits; the message says how many devices are needed.
    """
    placements = [given] if given else _candidates(workload, machine)
    if not placements:
        raise PlacementError(_too_large(workload, machine))
    planned = [PlannedPlacement(p, predict(p, workload, machine)) for p in placements]
    shortest = min(each.cost.seconds for each in planned)
    # A margin of one millionth, so that rounding does not decide.
    return next(each for each in planned if each.cost.seconds <= shortest * (1 + 1e-6))


def _candidates(workload: Workload, machine: Hardware) -> list[Placement]:
    sizes = workload.table_sizes
    replicated = [_is_better_replicated(rows, workload, machine.world_size) for rows in sizes]
    by_size = sorted(
        (i for i, everywhere in enumerate(replicated) if not everywhere),
        key=lambda i: (-sizes[i], i),
    )
    placements = []
    for by_rows in range(len(by_size) + 1):
        spread = set(by_size[:by_rows])
        kinds: list[PlacementKind] = [
            "replicate" if replicated[i] else "rows" if i in spread else "whole"
            for i in range(len(sizes))
        ]
        placements.append(_assign(kinds, workload, machine))
    return [placement for placement in placements if placement is not None]


def _is_better_replicated(rows: int, workload: Workload, ranks: int) -> bool:
    if ranks == 1:
        return False
    gradient = rows * workload.embedding_dim * 4 * 2
    vectors = workload.global_batch / ranks * workload.embedding_dim * workload.wire_bytes * 2
    return gradient <= vectors


def _assign(kinds: list[PlacementKind], workload: Workload, machine: Hardware) -> Placement | None:
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
        # Every table is looked up equally often: balance the number of tables, then the memory.
        owners[i] = rank = min(fitting, key=lambda r: (count[r], -free[r], r))
        free[rank] -= size
        count[rank] += 1
    if free.min() < 0:
        return None
    tables = (
        TablePlacement(rows, kind, owners.get(i))
        for i, (rows, kind) in enumerate(zip(sizes, kinds, strict=True))
    )
    return Placement(ranks, tuple(tables))


def _too_large(workload: Workload, machine: Hardware) -> str:
    sizes = {f"table {i}": workload.table_bytes(n) for i, n in enumerate(workload.table_sizes)}
    needed = sum(sizes.values())
    devices = int(-(-needed // machine.table_bytes))
    largest = sorted(sizes.items(), key=lambda table: -table[1])[:3]
    named = ", ".join(f"{name} {size / GIB:,.1f} GiB" for name, size in largest)
    return (
        f"the tables need {needed / GIB:,.1f} GiB with the state of their optimizer "
        f"(the largest: {named}), "
        f"but {machine.world_size} x {machine.memory_bytes / GIB:,.1f} GiB leave "
        f"{machine.world_size * machine.table_bytes / GIB:,.1f} GiB for them: use at least "
        f"{devices} such devices, or make the tables smaller (`max_table_size` with "
        "`hash_indices`, `embedding_storage` bfloat16, `optimizer` sgd, which has no "
        "state, a higher recsys-recipes prepare clicks --frequency_limit)"
    )
