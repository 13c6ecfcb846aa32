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
        "no barrier before the output row is read",
        "forward",
        "    __syncwarp();\n    Element* output",
        "    Element* output",
    ),
    _interaction(
        "no barrier before the next sample",
        "forward",
        "    __syncwarp();  // the next sample writes the row anew\n",
        "",
    ),
    _interaction(
        "no barrier after the gradients are staged",
        "backward",
        "    __syncwarp();\n    if (arguments.self_interaction) {",
        "    if (arguments.self_interaction) {",
    ),
    _interaction(
        "rows g and g + 8 of the right operand swapped",
        "forward",
        "operands[tile / 2][tile % 2]",
        "operands[tile / 2][1 - tile % 2]",
    ),
    _interaction(
        "gradients of a vector with itself",
        "backward",
        "(row == column && !arguments.self_interaction)",
        "false",
    ),
    _interaction(
        "no zero behind the gradients",
        "backward",
        "gradient[arguments.width] = Element{};",
        "",
    ),
    _interaction(
        "a vector is asked of the lane beside its own",
        "vectors",
        "vector % kWarpSize);",
        "(vector + 1) % kWarpSize);",
    ),
    _interaction("pairs one place too far", "vectors", "/ 2 + column;", "/ 2 + column + 1;"),
    _interaction(
        "store beyond the last column",
        "backward",
        "vector < arguments.num_vectors && column < arguments.dim",
        "vector < arguments.num_vectors",
    ),
    _interaction(
        "rows are not checked",
        "vectors",
        "row >= 0 && row < arguments.num_table_rows ? row : -1",
        "row",
    ),
    _interaction(
        "no barrier between chunks",
        "any_size",
        "base, weights, values);\n      __syncthreads();",
        "base, weights, values);",
    ),
    _interaction(
        "padding is not written",
        "any_size",
        "i < arguments.width; i += blockDim.x) {",
        "i < 0; i += blockDim.x) {",
    ),
    _update(
        "overflow is not looked at",
        "chunks",
        "arguments.overflow != nullptr && load_global(arguments.overflow)",
        "false",
    ),
    _update(
        "the sum of a crossing segment begins one chunk late",
        "crossing",
        "add_heads<Width>(chunk_sums.heads, segment.first_chunk + 1,",
        "add_heads<Width>(chunk_sums.heads, segment.first_chunk + 2,",
    ),
    _update(
        "chunk sums in the place of the next chunk",
        "chunks",
        "chunk * dim + column, columns",
        "(chunk + 1) * dim + column, columns",
    ),
    _update(
        "no barrier before the slices of a long segment are added",
        "crossing",
        "arguments.dim, team);\n  __syncthreads();\n  target",
        "arguments.dim, team);\n  target",
    ),
    _update(
        "a segment that began in an earlier chunk is taken for a whole one",
        "segments",
        "return starts_inside && (ends",
        "return false && (ends",
    ),
    _update(
        "idle lanes store beyond the row",
        "chunks",
        "has_columns = column < arguments.dim",
        "has_columns = true",
    ),
    _update(
        "the numbers of later lookups are not read",
        "chunks",
        "if (next < kChunk && ",
        "if (next < 0 && ",
    ),
    _update(
        "numbers come from the neighbouring team",
        "segments",
        "& ~(team.lanes - 1)) + lane;",
        "& ~(2 * team.lanes - 1)) + lane;",
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
