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
    "pass_in_warp": "race shared",
    "pass_in_block": "race shared",
    "overwrite_in_warp": "race shared",
    "diverge_at_block_barrier": "deadlock barrier",
    "diverge_in_operation": "__shfl_xor_sync 16 __ballot_sync",
    "shuffle_from_left_lane": "__shfl_sync lane 31",
    "leave_shared_memory": "thread 63 shared 256",
    "misalign_vector": "misaligned",
    "read_unwritten": "NaN",
    "pass_in_global_memory": "race global thread",
    "write_from_two_blocks": "race global block",
    "read_from_two_blocks": "race global block",
    "add_from_two_blocks": "race global",
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    require("C++ compiler")
    sources = [DRIVERS / "faulty_kernels.cpp", *build.SCHEDULER]
    program = build.link(build.compile_sources(sources, build.FOLDER), build.FOLDER / "faulty")
    return dict(line.split(": ", 1) for line in harness.run(program).stdout.splitlines())


@pytest.mark.parametrize("kernel", FAULTS)
def test_fault_is_named_and_the_right_form_runs(verdicts, kernel):
    harness.assert_tells(verdicts[f"wrong {kernel}"], *FAULTS[kernel].split())
    assert verdicts[f"right {kernel}"].lstrip("-").isdigit()


def test_exchanges(verdicts):
    """Each of 64 threads counts the 32 lanes of its warp and sees the votes of the even ones."""
    assert verdicts["right count_lanes"] == str(64 * 33)
