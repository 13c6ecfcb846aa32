# SPDX-License-Identifier: Apache-2.0
"""Joins a row-wise sharded table from its ranks, block by block.

Blocks are dealt out too, so that every rank writes a share of the table while none ever holds more
than a block of it. Letters: W ranks, D columns.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK_ROWS = 2**16
"""Rows of a block; a block of any width ends with a page of the file, so none is shared."""


def whole_blocks(
    shard: slice, rank: int, held: Tensor, block_rows: int = BLOCK_ROWS
) -> Iterator[tuple[int, Tensor]]:
    """Yields the blocks that a rank is to write; collective over ranks.

    Block number n is rank (n mod W)'s.

    Args:
        shard: this rank's rows of the table: first, past the last of the table, and W.
        rank: this one.
        held: [local rows, D] this rank's rows.
        block_rows: rows of all blocks but the last.

    Yields:
        (the block's first row, [rows of the block, D] on the host).
    """
    world, total = shard.step, shard.stop
    # Neighbouring ranks have neighbouring rows.
    firsts = [(shard.start + other - rank) % world for other in range(world)]
    held = held.detach()
    for round_start in range(0, total, world * block_rows):
        bounds = [
            (min(start, total), min(start + block_rows, total))
            for start in range(round_start, round_start + world * block_rows, block_rows)
        ]
        # The rows of all these blocks that lie here are neighbours, in the order of the blocks.
        sent = [_held_in(firsts[rank], world, *block) for block in bounds]
        sending = held[sent[0][0] : sent[-1][1]].cpu().contiguous()
        arriving = [_held_in(first, world, *bounds[rank]) for first in firsts]
        counts = [stop - start for start, stop in arriving]
        arrived = sending.new_empty(sum(counts), held.shape[1])
        dist.all_to_all_single(arrived, sending, counts, [stop - start for start, stop in sent])
        start, stop = bounds[rank]
        if start == stop:
            continue
        block = arrived.new_empty(stop - start, held.shape[1])
        for first, (local, _), rows in zip(
            firsts, arriving, torch.split(arrived, counts), strict=True
        ):
            block[first + local * world - start :: world][: len(rows)] = rows
        yield start, block


def _held_in(first: int, world: int, start: int, stop: int) -> tuple[int, int]:
    """Returns a block's local rows on the rank with this first row."""
    return max(-(-(start - first) // world), 0), max(-(-(stop - first) // world), 0)
