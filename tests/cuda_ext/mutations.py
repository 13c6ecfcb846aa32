# SPDX-License-Identifier: Apache-2.0
"""Faults that the emulator's tests must notice: a changed line of a kernel each."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A planted fault."""

    name: str
    file: str
    """Below cuda_ext/csrc."""
    text: str
    replacement: str
    launches: str
    """The .cu file that compiles the kernel, below cuda_ext/csrc."""
    driver: str


def _interaction(name: str, file: str, text: str, replacement: str) -> Mutation:
    path = f"interaction/cuda/{file}.cuh"
    return Mutation(
        name, path, text, replacement, "interaction/cuda/launch.cu", "interaction_driver"
    )


def _update(name: str, file: str, text: str, replacement: str) -> Mutation:
    path = f"update/cuda/{file}.cuh"
    return Mutation(name, path, text, replacement, "update/cuda/launch.cu", "embedding_driver")


MUTATIONS = (
    _interaction(
        "rows g and g + 8 of the right operand swapped",
        "forward",
        "operands[tile / 2][tile % 2]",
        "operands[tile / 2][1 - tile % 2]",
    ),
    _interaction(
        "no barrier after the gradients are staged",
        "backward",
        "    __syncwarp();  // the gradients are there\n",
        "",
    ),
    _interaction(
        "a vector is asked of the lane beside its own",
        "vectors",
        "vector % kWarpSize);",
        "(vector + 1) % kWarpSize);",
    ),
    _interaction(
        "no barrier between chunks",
        "any_size",
        "base, weights, values);\n      __syncthreads();",
        "base, weights, values);",
    ),
    _update(
        "idle lanes store beyond the row",
        "chunks",
        "has_columns = column < arguments.dim",
        "has_columns = true",
    ),
    _update(
        "the sum of a crossing segment begins one chunk late",
        "crossing",
        "add_heads<Width>(chunk_sums.heads, segment.first_chunk + 1,",
        "add_heads<Width>(chunk_sums.heads, segment.first_chunk + 2,",
    ),
    _update(
        "a segment that began in an earlier chunk is taken for a whole one",
        "segments",
        "return starts_inside && (ends",
        "return false && (ends",
    ),
    Mutation(
        "a row beyond the table is read",
        "lookup/cuda/gather.cuh",
        "!is_row(row, arguments.num_table_rows)",
        "row < 0",
        "lookup/cuda/launch.cu",
        "embedding_driver",
    ),
)
"""One in each file: in the layout of operands, in barriers of a warp and of a block, in an exchange
among lanes, in a store and in a load out of bounds, in a sum and in who writes a row.
"""
