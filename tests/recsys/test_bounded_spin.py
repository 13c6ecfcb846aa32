# SPDX-License-Identifier: Apache-2.0
"""Waiting threads of a program give their core away, unless its user decides otherwise."""

import pytest

from tests import harness
from tests.tools import needs

UNSET = dict.fromkeys(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"))
LONG_SPIN = "1000000000"
SPIN_COUNT_WHERE_TORCH_IS_IMPORTED = """
import os, sys

class AtTorch:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, AtTorch)
__import__(sys.argv[1])
import torch
"""


@pytest.mark.parametrize(
    ("package", "environment", "spin_count"),
    [
        ("bert4rec", {}, "1000"),
        ("dlrm", {}, "1000"),
        ("recsys.serve", {}, "1000"),
        ("dlrm", {"GOMP_SPINCOUNT": LONG_SPIN}, LONG_SPIN),
        ("dlrm", {"OMP_WAIT_POLICY": "active"}, "None"),
    ],
)
def test_the_spin_is_bounded_before_torch_unless_the_user_says_how(
    package, environment, spin_count
):
    program = ("-c", SPIN_COUNT_WHERE_TORCH_IS_IMPORTED, package)
    assert harness.python(*program, **UNSET | environment).stdout.split() == [spin_count]


PAUSES = 5
PAUSE_S = 0.2
CPU_SECONDS_OF_PAUSES = f"""
import dlrm, time
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


@pytest.mark.parametrize(
    ("environment", "spins"),
    [
        ({}, False),
        # alone on one core, libgomp never spins long
        pytest.param({"GOMP_SPINCOUNT": LONG_SPIN}, True, marks=needs("second core")),
    ],
)
def test_waiting_threads_spin_through_a_pause_where_the_user_asks_alone(environment, spins):
    done = harness.python("-c", CPU_SECONDS_OF_PAUSES, **UNSET | environment)
    share = float(done.stdout) / (PAUSES * PAUSE_S)
    assert (share > 0.02) == spins  # alone some 0.9 and 0.001, beside busy programs less
