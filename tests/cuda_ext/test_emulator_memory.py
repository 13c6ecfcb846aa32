# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels under AddressSanitizer, as they are and with planted faults."""

import shutil
from pathlib import PurePath

import pytest

from cuda_ext.emu import build
from tests import harness
from tests.tools import needs

pytestmark = needs("C++ compiler")


def run_guarded(*arguments, status):
    """Runs the tests of the kernels on guarded memory, which is NaN until it is written."""
    libraries = [
        harness.run(build.compiler(), f"-print-file-name={name}").stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return harness.python(
        *("-m", "tests.cuda_ext.guarded", *arguments),
        status=status,
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS=f"detect_leaks=0:malloc_fill_byte=255:max_malloc_fill_size={2**30}",
    )


@pytest.mark.release
def test_kernels_stay_inside_their_memory():
    run_guarded(status=0)


MUTATIONS = {
    "rows g and g + 8 of the right operand swapped": (
        "interaction/cuda/forward.cuh",
        "operands[tile / 2][tile % 2]",
        "operands[tile / 2][1 - tile % 2]",
    ),
    "no barrier after the gradients are staged": (
        "interaction/cuda/backward.cuh",
        "    __syncwarp();  // the gradients are there\n",
        "",
    ),
    "a vector is asked of the lane beside its own": (
        "interaction/cuda/vectors.cuh",
        "vector % kWarpSize);",
        "(vector + 1) % kWarpSize);",
    ),
    "no barrier between chunks": (
        "interaction/cuda/any_size.cuh",
        "base, weights, values);\n      __syncthreads();",
        "base, weights, values);",
    ),
    "idle lanes store beyond the row": (
        "update/cuda/chunks.cuh",
        "has_columns = column < arguments.dim",
        "has_columns = true",
    ),
    "the sum of a crossing segment begins one chunk late": (
        "update/cuda/crossing.cuh",
        "add_heads<Width>(chunk_sums.heads, segment.first_chunk + 1,",
        "add_heads<Width>(chunk_sums.heads, segment.first_chunk + 2,",
    ),
    "a segment that began in an earlier chunk is taken for a whole one": (
        "update/cuda/segments.cuh",
        "return starts_inside && (ends",
        "return false && (ends",
    ),
    "a row beyond the table is read": (
        "lookup/cuda/gather.cuh",
        "!is_row(row, arguments.num_table_rows)",
        "row < 0",
    ),
}
"""Name -> file of cuda_ext/csrc, a text of it and what replaces it, one in each file.

In the layout of operands, in barriers of a warp and of a block, in an exchange among lanes, in a
store and in a load out of bounds, in a sum and in who writes a row.
"""


@pytest.mark.release
@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_fault_is_noticed(tmp_path, name):
    file, text, replacement = MUTATIONS[name]
    for folder in ("csrc", "emu"):
        shutil.copytree(build.PACKAGE / folder, tmp_path / folder)
    mutated = tmp_path / "csrc" / file
    source = mutated.read_text()
    assert text in source
    mutated.write_text(source.replace(text, replacement))
    launch = f"{PurePath(file).parts[0]}_launch.cu"
    run_guarded(tmp_path, PurePath(file).with_name(launch), status=1)
