# SPDX-License-Identifier: Apache-2.0
"""Gathers a row-wise table into blocks of consecutive rows.

Every rank gathers and writes some of the blocks, and has one at a time in memory.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK_ROWS = 2**16
"""Rows of a block; with any number of columns a block ends at a page boundary of the file."""


def whole_blocks(
    shard: slice, rank: int, local: Tensor, block_rows: int = BLOCK_ROWS
) -> Iterator[tuple[int, Tensor]]:
    """Yields the blocks that a rank writes; all ranks must iterate.

    Block n belongs to rank n mod W.

    Args:
        shard: this rank's rows of the table: its first row, the table's number of rows, W.
        rank: number of this rank.
        local: [rows of the shard, D].
        block_rows: rows of a block; the last one may be shorter.

    Yields:
        (first row of the block, [rows of the block, D] on the host).
    """
    world, total = shard.step, shard.stop
    # Neighbouring ranks have neighbouring rows.
    firsts = [(shard.start + other - rank) % world for other in range(world)]
    local = local.detach()
    for round_start in range(0, total, world * block_rows):
        bounds = [
            (min(start, total), min(start + block_rows, total))
            for start in range(round_start, round_start + world * block_rows, block_rows)
        ]
        # This rank's rows of these blocks are consecutive, in the order of the blocks.
        sent = [_local_range(firsts[rank], world, *block) for block in bounds]
        sending = local[sent[0][0] : sent[-1][1]].cpu().contiguous()
        ranges = [_local_range(first, world, *bounds[rank]) for first in firsts]
        counts = [stop - start for start, stop in ranges]
        received = sending.new_empty(sum(counts), local.shape[1])
        dist.all_to_all_single(received, sending, counts, [stop - start for start, stop in sent])
        start, stop = bounds[rank]
        if start == stop:
            continue
        block = received.new_empty(stop - start, local.shape[1])
        for first, (local_start, _), rows in zip(
            firsts, ranges, torch.split(received, counts), strict=True
        ):
            block[first + local_start * world - start :: world][: len(rows)] = rows
        yield start, block


def _local_range(first: int, world: int, start: int, stop: int) -> tuple[int, int]:
    """Returns a rank's local rows of a block, as (start, stop)."""
    return max(-(-(start - first) // world), 0), max(-(-(stop - first) // world), 0)
