# SPDX-License-Identifier: Apache-2.0
"""A process that stands still is found and named; one that is slow, or has left, is not."""

import os
import subprocess
import threading
import time

import pytest
import torch.distributed as dist

from recsys.train import heartbeat
from recsys.train.heartbeat import Heartbeat, ProcessLostError
from recsys.train.processes import join_processes
from tests import harness

LIMIT = 1.0


class Ends:
    """Keeps what a heartbeat ends with."""

    def __init__(self):
        self.messages = []
        self.called = threading.Event()

    def __call__(self, message):
        self.messages.append(message)
        self.called.set()


@pytest.fixture
def store():
    return dist.HashStore()


@pytest.fixture
def watch():
    """Starts the heartbeat of a rank; all stop at the end."""
    started = []

    def start(store, rank, world_size, ends):
        started.append(Heartbeat(store, rank, world_size, LIMIT, ends))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop()


def alive(store, rank, beat=0):
    store.set(f"who_{rank}", f"process 9{rank} on there")
    store.set(f"beat_{rank}", str(beat))


def test_the_first_process_names_one_that_stands_still(store, watch):
    ends, others = Ends(), Ends()
    alive(store, 2)
    for rank, its_ends in ((1, others), (0, ends)):
        watch(store.clone(), rank, 3, its_ends)
    began = time.monotonic()
    assert ends.called.wait(300)
    assert time.monotonic() - began > 0.9 * LIMIT
    assert "rank 2 (process 92 on there) gave no sign of life for 1 s" in ends.messages[0]
    assert "rank 1" not in ends.messages[0]
    assert not others.messages


def test_the_others_name_the_first(store, watch):
    ends = Ends()
    alive(store, 0)
    watch(store.clone(), 1, 2, ends)
    assert ends.called.wait(300)
    assert ends.messages[0].startswith("rank 0 (process 90 on there)")


def assert_turns_without_an_end(ends, store, number, *ranks):
    """Waits until these ranks have beaten so often more; fails when one ends the run."""
    until = [int(store.get(f"beat_{rank}")) + number for rank in ranks]
    beats = [f"beat_{rank}" for rank in ranks]
    harness.wait_for(
        lambda: (
            ends.messages or all(int(store.get(b)) >= n for b, n in zip(beats, until, strict=True))
        ),
        "heartbeats",
    )
    assert not ends.messages


def test_a_process_that_left_is_not_missed(store, watch):
    ends = Ends()
    beats = [watch(store.clone(), rank, 3, ends) for rank in range(3)]
    assert_turns_without_an_end(ends, store, 2, 0, 1, 2)
    beats[1].stop()
    beats[2].stop()
    assert_turns_without_an_end(ends, store, 13, 0)  # ten are the limit


def freeze_together(_rank):
    """Stops this process, with the heartbeats of two ranks, for twice the limit."""
    store, ends, this = dist.HashStore(), Ends(), os.getpid()
    beats = [Heartbeat(store.clone(), rank, 2, LIMIT, ends) for rank in range(2)]
    for beat in beats:
        beat.start()
    assert_turns_without_an_end(ends, store, 2, 0, 1)
    freeze = f"kill -STOP {this}; sleep {2 * LIMIT}; kill -CONT {this}"
    subprocess.run(["sh", "-c", freeze], check=True)
    assert_turns_without_an_end(ends, store, 5, 0, 1)
    for beat in beats:
        beat.stop()


def test_who_was_stopped_itself_accuses_nobody():
    harness.run_ranks(1, freeze_together, joined=False)


class Silent:
    """A store whose machine is gone: no timeout ends a call of it."""

    def __init__(self):
        self.known = {"who_0": b"process 90 on there", "beat_0": b"0"}

    def set(self, key, value):
        pass

    def set_timeout(self, timeout):
        pass

    def get(self, key):
        return self.known.pop(key, None) or threading.Event().wait()


class Gone(Silent):
    """A store whose server has ended."""

    def get(self, key):
        raise dist.DistNetworkError("connection reset by peer")


@pytest.mark.parametrize("store", [Silent(), Gone()])
def test_a_lost_store_ends_the_process(monkeypatch, watch, store):
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("MASTER_PORT", "1234")
    lost = Ends()
    watch(store, 1, 2, lost)
    assert lost.called.wait(300)
    assert "here:1234" in lost.messages[0]
    known = "connection reset" if isinstance(store, Gone) else "rank 0 (process 90 on there)"
    assert known in lost.messages[0]


def test_a_store_that_ends_with_the_job_ends_no_process(watch):
    """Rank 0 may hold it and fail; the others leave within the limit."""
    ends = Ends()
    leaving = watch(Gone(), 1, 2, ends)
    leaving._thread.join(300)
    leaving.stop()
    leaving._watch.join(300)
    assert not leaving._watch.is_alive()
    assert not ends.messages


SHORT = 5.0


def stay_longer(rank):
    """Leaves a run; the second rank takes longer than the limit to come to that."""
    with join_processes("cpu", 1, process_timeout=SHORT) as processes:
        processes.barrier()
        if rank == 1:
            time.sleep(2 * SHORT)


@pytest.mark.multiprocess
def test_the_process_that_holds_the_store_leaves_last():
    harness.run_ranks(2, stay_longer, joined=False)


def vanish_at_the_end(rank):
    """Leaves a run, in which the second process is killed after the last exchange."""
    with join_processes("cpu", 1, process_timeout=SHORT) as processes:
        processes.barrier()
        if rank == 1:
            os._exit(1)


@pytest.mark.multiprocess
def test_the_process_that_holds_the_store_does_not_wait_for_a_dead_one():
    harness.run_ranks(2, vanish_at_the_end, joined=False, status=1)


def test_who_did_not_come_to_an_exchange_is_named(store, monkeypatch):
    monkeypatch.setattr(heartbeat, "_ROLL_CALL_S", LIMIT)
    alive(store, 0)
    alive(store, 2)
    store.set("waited_1", "")
    beat = Heartbeat(store.clone(), 0, 3, LIMIT, Ends())
    beat.name_absent(RuntimeError("Connection closed by peer"))
    with pytest.raises(ProcessLostError, match=r"rank 2 \(process 92 on there\) did not come"):
        beat.name_absent(RuntimeError("Timed out waiting 1000ms for recv operation to complete"))
    store.set("waited_2", "")
    beat.name_absent(RuntimeError("Timed out waiting 1000ms for recv operation to complete"))
