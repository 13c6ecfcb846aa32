# SPDX-License-Identifier: Apache-2.0
"""The process group of a run: nothing of it outlives the run."""

from tests import harness

PROGRAM = """
from pathlib import Path

import torch
import torch.distributed as dist

from recsys.train.processes import join_processes


def threads():
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


with join_processes("cpu", 1, needs_group=True):
    import torch.distributed.nn.functional  # as torch's own modules do while a run trains

    dist.all_reduce(torch.ones(3))
    print("inside:", *threads())
print("after:", *threads())
"""


def test_the_group_leaves_no_thread_that_could_abort_the_end_of_the_interpreter():
    done = harness.python("-c", PROGRAM)
    inside, after = (line for line in done.stdout.splitlines() if ":" in line)
    assert "pt_gloo_runloop" in inside
    assert "pt_gloo_runloop" not in after
