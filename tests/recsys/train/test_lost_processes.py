# SPDX-License-Identifier: Apache-2.0
"""A process that ends, stands still or stays away ends the others, which name it."""

import contextlib
import os
import re
import signal
import socket

import pytest

from recsys.errors import ProcessLostError
from recsys.train.processes import join_processes
from tests import harness
from tests.recsys.train.tiny import TINY_DLRM

pytestmark = pytest.mark.multiprocess

RANKS = 3
PROGRAM = (
    *("-m", "dlrm.scripts.main", *TINY_DLRM, "--epochs=1000000", "--test_after=2000000"),
    *("--print_freq=1", "--process_timeout=10"),
)


@pytest.mark.parametrize("which", [0, RANKS - 1])
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_name_a_process_that_is_lost(tmp_path, sign, which):
    """The first holds the store of the job."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                harness.started_forked(
                    *PROGRAM, f"--log_path={tmp_path / 'log'}", **address,
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                )
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        harness.wait_for_line(ranks[0], lambda line: "[3/" in line)
        lost = ranks.pop(which)
        lost.send_signal(sign)
        for rank in ranks:
            said = rank.stdout.read()
            assert rank.wait(harness.PATIENCE_S) == 1, said
            named = re.findall(r"(rank \d+ \(process .*?\))", said)
            assert named == [f"rank {which} (process {lost.pid} on {socket.gethostname()})"], said


def stay_away(rank, told):
    """Rank 1 lives, but is busy for longer than the other one waits for it."""
    with (
        pytest.raises(ProcessLostError, match=rf"^rank 1 .process (?!{os.getpid()} )\d+ ")
        if rank == 0
        else contextlib.nullcontext(),
        join_processes("cpu", 1, process_timeout=5) as processes,
    ):
        if rank == 0:
            processes.barrier()
        harness.wait_for(told.exists, "the other rank to give up")
    told.touch()


def test_a_process_that_lives_but_keeps_the_others_waiting_is_named(tmp_path):
    harness.run_ranks(2, stay_away, tmp_path / "told", joined=False)


def fail_alone(rank):
    """Rank 0 ends with an error of its own, without a word to the other one."""
    error, message = (ProcessLostError, "^rank 0 ") if rank else (RuntimeError, "^mine$")

    def act(processes):
        if rank == 0:
            raise RuntimeError("mine")
        processes.barrier()

    with pytest.raises(error, match=message), join_processes("cpu", 1) as processes:
        act(processes)


def test_an_error_of_one_process_is_its_own_and_ends_the_others():
    harness.run_ranks(2, fail_alone, joined=False)


def leave_last(rank, told):
    with join_processes("cpu", 1, process_timeout=60) as processes:
        processes.barrier()
        if rank == 1:
            harness.wait_for(told.exists, "the other rank to leave")
    told.touch()


def test_a_process_needs_no_other_one_after_the_last_exchange(tmp_path):
    harness.run_ranks(2, leave_last, tmp_path / "told", joined=False)
