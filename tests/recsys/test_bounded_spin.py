# SPDX-License-Identifier: Apache-2.0
"""Waiting threads of a program give their core away, unless its user decides otherwise."""

import pytest

from tests import harness
from tests.tools import needs

PAUSES = 100
PAUSE_S = 0.005
CPU_SECONDS_OF_PAUSES = f"""
import sys, time
__import__(sys.argv[1])
import torch

torch.set_num_threads(2)
rows = torch.randn(1 << 20)
waiting = 0.0
for _ in range({PAUSES}):
    rows.add_(1.0)
    before = time.process_time()
    time.sleep({PAUSE_S})
    waiting += time.process_time() - before
print(waiting)
"""
LONG_SPIN = "1000000000"


def cpu_s_of_pauses(package, **environment):
    """CPU seconds of a program that only pauses between parallel regions."""
    unset = dict.fromkeys(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"))
    done = harness.python("-c", CPU_SECONDS_OF_PAUSES, package, **unset | environment)
    return float(done.stdout)


@pytest.mark.parametrize("package", ["bert4rec", "dlrm", "recsys.serve"])
def test_waiting_threads_do_not_spin_through_a_pause(package):
    assert cpu_s_of_pauses(package) < 0.1 * PAUSES * PAUSE_S


@needs("second core")  # alone on one, libgomp never spins long
@pytest.mark.parametrize("variable", [{"GOMP_SPINCOUNT": LONG_SPIN}, {"OMP_WAIT_POLICY": "active"}])
def test_the_users_choice_holds(variable):
    assert cpu_s_of_pauses("dlrm", **variable) > 0.3 * PAUSES * PAUSE_S
