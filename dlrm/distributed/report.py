# SPDX-License-Identifier: Apache-2.0
"""A placement and its predicted costs as text."""

from collections import Counter

from dlrm.distributed.cost import GIB, Workload
from dlrm.distributed.planner import PlannedPlacement


def describe(planned: PlannedPlacement, workload: Workload) -> list[str]:
    """Returns lines: a table with one row per rank, and what holds for all of them."""
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
