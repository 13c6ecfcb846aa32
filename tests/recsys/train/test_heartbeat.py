# SPDX-License-Identifier: Apache-2.0
"""A process that stands still is found and named; one that is slow, or has left, is not."""

import threading
import time

import pytest
import torch.distributed as dist

from recsys.train.heartbeat import Heartbeat, ProcessLostError

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
    for heartbeat in started:
        heartbeat.stop()


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


def test_a_process_that_left_is_not_missed(store, watch):
    ends = Ends()
    beats = [watch(store.clone(), rank, 3, ends) for rank in range(3)]
    time.sleep(LIMIT)
    beats[1].stop()
    beats[2].stop()
    assert not ends.called.wait(2 * LIMIT)


class Freezing:
    """A store whose user is stopped with all the others for a while, as one machine's are."""

    def __init__(self, store, seconds):
        self._store = store
        self._seconds = seconds
        self._beats = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def set(self, key, value):
        self._beats += 1
        if self._beats == 5:
            time.sleep(self._seconds)
        self._store.set(key, value)
        if not 5 <= self._beats < 8:  # the other one takes a moment longer to go on
            alive(self._store, 1, self._beats)


def test_who_was_stopped_itself_accuses_nobody(store, watch):
    ends = Ends()
    alive(store, 1)
    watch(Freezing(store.clone(), 2 * LIMIT), 0, 2, ends)
    assert not ends.called.wait(5 * LIMIT)


class Silent:
    """A store that does not answer."""

    def set(self, key, value):
        pass

    def set_timeout(self, timeout):
        self._timeout = timeout.total_seconds()

    def get(self, key):
        time.sleep(self._timeout)
        raise dist.DistStoreError("wait timeout")


class Gone(Silent):
    """A store whose server has ended."""

    def get(self, key):
        raise dist.DistNetworkError("connection reset by peer")


def test_a_silent_store_ends_the_process_and_one_that_left_does_not(monkeypatch, watch):
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("MASTER_PORT", "1234")
    lost, left = Ends(), Ends()
    watch(Gone(), 1, 2, left)
    watch(Silent(), 1, 2, lost)
    assert lost.called.wait(300)
    assert "store of the job at here:1234 has not answered for 1 s" in lost.messages[0]
    assert not left.called.wait(2 * LIMIT)


def test_who_did_not_come_to_an_exchange_is_named(store):
    alive(store, 0)
    alive(store, 2)
    store.set("waited_1", "")
    beat = Heartbeat(store.clone(), 0, 3, LIMIT, Ends())
    beat.name_absent(RuntimeError("Connection closed by peer"))
    with pytest.raises(ProcessLostError, match=r"rank 2 \(process 92 on there\) did not come"):
        beat.name_absent(RuntimeError("Timed out waiting 1000ms for recv operation to complete"))
    store.set("waited_2", "")
    beat.name_absent(RuntimeError("Timed out waiting 1000ms for recv operation to complete"))
