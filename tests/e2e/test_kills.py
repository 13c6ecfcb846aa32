# SPDX-License-Identifier: Apache-2.0
"""Commands that are killed at random moments end with the files of an undisturbed run."""

import pytest

from tests import harness


@pytest.mark.release
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_commands_leave_what_a_whole_run_leaves(seed):
    done = harness.python("-m", "tests.kills", "--kills=12", f"--seed={seed}")
    assert done.stdout.endswith("0 faults\n")
