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


@pytest.mark.parametrize(
    ("package", "environment", "spins"),
    [
        ("bert4rec", {}, False),
        ("dlrm", {}, False),
        ("recsys.serve", {}, False),
        # the user's choice holds; alone on one core, libgomp never spins long
        pytest.param("dlrm", {"GOMP_SPINCOUNT": LONG_SPIN}, True, marks=needs("second core")),
        pytest.param("dlrm", {"OMP_WAIT_POLICY": "active"}, True, marks=needs("second core")),
    ],
)
def test_waiting_threads_spin_through_a_pause_where_the_user_asks_alone(
    package, environment, spins
):
    unset = dict.fromkeys(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"))
    done = harness.python("-c", CPU_SECONDS_OF_PAUSES, package, **unset | environment)
    share = float(done.stdout) / (PAUSES * PAUSE_S)
    assert share > 0.3 if spins else share < 0.1
