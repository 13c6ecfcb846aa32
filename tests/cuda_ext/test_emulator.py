# SPDX-License-Identifier: Apache-2.0
"""The emulator itself: barriers, exchanges and races.

Its tensor cores and conversions are tested by the kernels that use them.
"""

from pathlib import Path

import pytest

from cuda_ext.emu import build
from tests import harness
from tests.tools import require

DRIVERS = Path(__file__).with_name("drivers")

FAULTS = {
    "pass_in_warp": "race on shared memory",
    "pass_in_block": "race on shared memory",
    "overwrite_in_warp": "race on shared memory",
    "diverge_at_block_barrier": "deadlock, not all threads reach the same barrier",
    "diverge_in_operation": "__shfl_xor_sync [from thread 16] __ballot_sync",
    "shuffle_from_left_lane": "__shfl_sync reads lane 31, which has left the kernel",
    "leave_shared_memory": "thread 63 leaves dynamic shared memory at byte 256",
    "misalign_vector": "misaligned address of a vector",
    "read_unwritten": "NaN",
    "pass_in_global_memory": "race on global memory: thread",
    "write_from_two_blocks": "race on global memory: a thread of block",
    "read_from_two_blocks": "race on global memory: a thread of",
    "add_from_two_blocks": "race on global memory: ",
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    require("C++ compiler")
    sources = [DRIVERS / "faulty_kernels.cpp", *build.SCHEDULER]
    program = build.link(build.compile_sources(sources, build.FOLDER), build.FOLDER / "faulty")
    return dict(line.split(": ", 1) for line in harness.run(program).stdout.splitlines())


@pytest.mark.parametrize("kernel", FAULTS)
def test_fault_is_named_and_the_right_form_runs(verdicts, kernel):
    assert FAULTS[kernel] in verdicts[f"wrong {kernel}"]
    assert verdicts[f"right {kernel}"].lstrip("-").isdigit()


def test_exchanges(verdicts):
    """Each of 64 threads counts the 32 lanes of its warp and sees the votes of the even ones."""
    assert verdicts["right count_lanes"] == str(64 * 33)
