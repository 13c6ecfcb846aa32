# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: environment, cores, and that nothing outlives the run."""

import contextlib
import errno
import json
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from recsys.interruption import StopRequest
from recsys.train.processes import SharedStop, join_processes
from tests import harness
from tests.harness import assert_tells, refusal
from tests.recsys.train.tiny import TINY_DLRM
from tests.tools import needs

PROGRAM = """
from pathlib import Path

import torch
import torch.distributed as dist

from recsys.interruption import StopRequest
from recsys.train.processes import SharedStop, join_processes


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


def write_cores(rank, folder, num_threads, masks):
    """Joins a run of two processes on this machine, from the core mask of this rank."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    os.sched_setaffinity(0, masks[rank])
    with join_processes("cpu", num_threads):
        inside = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
    (folder / str(rank)).write_text(json.dumps([*inside, sorted(os.sched_getaffinity(0))]))


MINE = sorted(os.sched_getaffinity(0))[:2]
ONE_EACH = [[[core], 1, MINE] for core in MINE]


@needs("second core")
@pytest.mark.parametrize(
    ("num_threads", "masks", "expected"),
    [
        (None, [MINE, MINE], ONE_EACH),
        (1, [MINE, MINE], ONE_EACH),
        # what their launcher gave them, or more threads than cores: left to the system
        (None, [MINE, MINE[1:]], [[MINE, 2, MINE], [MINE[1:], 1, MINE[1:]]]),
        (2, [MINE, MINE], [[MINE, 2, MINE]] * 2),
    ],
)
def test_processes_of_a_machine_stay_on_cores_of_their_own(tmp_path, num_threads, masks, expected):
    harness.run_ranks(2, write_cores, tmp_path, num_threads, masks, joined=False)
    assert sorted(json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)) == expected


def stop_at_a_step(rank, folder):
    """Counts steps until a request, which reaches rank 1 alone in step 300."""
    request = StopRequest()
    with join_processes("cpu", 1) as here:
        questions = []
        total = here.sum
        counted = SimpleNamespace(
            world_size=2, sum=lambda votes: questions.append(votes) or total(votes)
        )
        stop = SharedStop(counted, request)
        for step in range(1000):
            time.sleep(1e-4 * (1 + rank))  # ranks of different speed
            request.signal_name = "SIGINT" if rank == 1 and step >= 300 else None
            if (name := stop.after_step()) is not None:
                break
        here.barrier()
    (folder / str(rank)).write_text(json.dumps([step, name, len(questions)]))


def test_processes_stop_at_the_same_step_and_seldom_ask_each_other(tmp_path):
    harness.run_ranks(2, stop_at_a_step, tmp_path, joined=False)
    (step, first, asked), (other_step, second, other_asked) = (
        json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)
    )
    assert 300 <= step == other_step < 300 + 64
    assert (first, second) == ("SIGTERM", "SIGINT")
    assert asked == other_asked < 30


STOPPED = """
import signal, sys
from recsys import interruption

interruption.SAME_REQUEST_S = int(sys.argv[1])
with interruption.StopRequest() as stop:
    for name in sys.argv[2:]:
        signal.raise_signal(getattr(signal, name))
signal.raise_signal(getattr(signal, name))
print(stop.signal_name)
"""
UNDER_TORCHRUN = {"TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("seconds", "names", "environment", "killed_by"),
    [
        (100, "SIGTERM SIGTERM", {}, None),  # one to all processes of a job, and one passed on
        (100, "SIGHUP SIGTERM", {}, None),
        (100, "SIGINT SIGINT", UNDER_TORCHRUN, None),
        (100, "SIGINT SIGINT", {}, signal.SIGINT),
        (100, "SIGTERM SIGINT", {}, signal.SIGINT),
        (-1, "SIGTERM SIGTERM", {}, signal.SIGTERM),
        (-1, "SIGTERM SIGINT", UNDER_TORCHRUN, signal.SIGINT),
    ],
)
def test_a_second_signal_ends_at_once_unless_it_is_the_same_request(
    seconds, names, environment, killed_by
):
    status = 0 if killed_by is None else -killed_by
    done = harness.python("-c", STOPPED, seconds, *names.split(), status=status, **environment)
    assert done.stdout.strip() == ("" if killed_by else names.split()[0])


def join_a_store_that_outlives_a_start(rank, port):
    """Joins torchrun's store, whose agents have counted restarts differently."""
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(rank)
    for _ in range(2):
        with join_processes("cpu", 1, process_timeout=20) as here:
            assert here.gather_values(rank) == [0, 1]


def test_a_start_after_a_restart_meets_no_process_of_an_earlier_one():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("hello_1", "killed")
    harness.run_ranks(2, join_a_store_that_outlives_a_start, store.port, joined=False)


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False])
def test_every_rank_reaches_the_folder_of_the_first(tmp_path, is_shared):
    (tmp_path / "0").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "0") if is_shared else (tmp_path / "1").mkdir()
    port = harness.free_port()
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                harness.started_forked(
                    *train(tmp_path, f"--save_checkpoint_path={tmp_path / rank}"),
                    **stale(rank, port),
                )
            )
            for rank in "01"
        ]
        outputs = [process.stdout.read() for process in ranks]
        assert [process.wait() for process in ranks] == ([0, 0] if is_shared else [2, 2]), outputs
    assert [path.name for path in (tmp_path / "0").glob(".*")] == []
    for output in () if is_shared else outputs:
        facts = ("rank 0", tmp_path / "0", "rank 1", tmp_path / "1", os.strerror(errno.ENOENT))
        assert_tells(output, *facts)
        assert "step_time" not in output


ORDER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def train(tmp_path, *arguments):
    """Returns the arguments of Python for a training that is small."""
    return ["-m", "dlrm.scripts.main", *TINY_DLRM, f"--log_path={tmp_path / 'log'}", *arguments]


@pytest.mark.parametrize(
    ("environment", "facts"),
    [
        ({"WORLD_SIZE": "two"}, ["WORLD_SIZE", 1, "two"]),
        ({"WORLD_SIZE": "0"}, ["WORLD_SIZE", 1, 0]),
        ({"RANK": "-1"}, ["RANK", 0, -1]),
        ({"RANK": "3"}, ["RANK 3", "WORLD_SIZE 1"]),
        ({"WORLD_SIZE": "2"}, ["RANK, MASTER_ADDR, MASTER_PORT"]),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "99999"},
            ["MASTER_PORT", 0, 65535, 99999],
        ),
    ],
)
def test_wrong_variables_are_named_with_the_way_out(monkeypatch, environment, facts):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    names = " ".join(name for name in ORDER if name in environment)
    with refusal(*facts, f"unset {names}"), join_processes("cpu", None):
        pass


def stale(rank, port):
    return {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_a_wait_for_other_processes_is_explained_and_ends_in_time_or_by_ctrl_c(tmp_path):
    ports = [harness.free_port() for _ in range(3)]
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        first, second, stopped = (
            stack.enter_context(
                harness.started_forked(*train(tmp_path / str(port), *flags), **stale(rank, port))
            )
            for rank, port, *flags in (
                ("0", ports[0], "--process_timeout=10"),
                ("1", ports[1], "--process_timeout=10"),
                ("0", ports[2]),
            )
        )
        harness.wait_for_line(stopped, lambda line: "WARNING" in line)
        stopped.send_signal(signal.SIGINT)
        assert stopped.wait(harness.PATIENCE_S) == 130
        for rank, process in enumerate((first, second)):
            notice, error = process.stdout.read().splitlines()
            assert process.wait() == 2
            whom = (f"rank {rank}", "1 of 2 processes", f"127.0.0.1:{ports[rank]}")
            assert_tells(notice, "WARNING", *whom, "10 s")
            assert_tells(error, "error:", *whom, "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT")
    assert time.monotonic() - began < 500  # without the flag they wait 600 s
