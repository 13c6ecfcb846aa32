# SPDX-License-Identifier: Apache-2.0
"""Detects frozen processes, and ends the run.

torchrun and the other processes notice one that dies. They do not notice one that is frozen (a
stopped process, a lost machine): they wait in a collective that never ends. So a thread of each
process writes a growing number to the store of the job, and reads those of others. Another one
watches that thread, for no timeout of the store ends a call that its machine does not answer.
"""

import contextlib
import datetime
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from recsys.errors import FAILED, as_flags

_BEATS_PER_LIMIT = 10
_LEFT = "left"
_ROLL_CALL_S = 5.0


class ProcessLostError(RuntimeError):
    """Another process of the run is frozen."""


def end_process(message: str) -> None:
    """Ends this process at once, and records the reason for torchrun."""
    # Imported here, since a run of one process never needs torchrun's modules.
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    message = as_flags(message, ("process_timeout",))
    try:
        sys.stderr.write(f"error: {message}\n")
        sys.stderr.flush()
        if "TORCHELASTIC_ERROR_FILE" in os.environ:
            try:
                raise ProcessLostError(message)
            except ProcessLostError as error:
                get_error_handler().record_exception(error)
    finally:
        os._exit(FAILED)  # also where nobody reads the message any more


class Heartbeat:
    """A thread that watches the other processes of a run.

    The first process watches all others, and they watch it, from `start` to `stop`.

    Args:
        store: one of torch.distributed of the job, over a connection of its own.
        rank: number of this process.
        world_size: number of processes.
        limit_s: seconds without a heartbeat after which a process counts as lost.
        end: called with the reason, in the thread, when one is lost.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        limit_s: float,
        end: Callable[[str], None] = end_process,
    ) -> None:
        self._store = store
        self._store.set_timeout(datetime.timedelta(seconds=2 * limit_s))
        self._rank = rank
        self._world_size = world_size
        self._limit_s = limit_s
        self._end = end
        self._peers = range(1, world_size) if rank == 0 else range(1)
        self._stopped = threading.Event()
        self._turns = 0
        self._failure = ""
        self._names: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._watch = threading.Thread(target=self._watch_store, name="store watch", daemon=True)

    def start(self) -> None:
        """Registers this process and starts the thread."""
        self._store.set(f"who_{self._rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._thread.start()
        self._watch.start()

    def wait_for_others(self) -> None:
        """Waits, on the first process, which may hold the store, until the others have left."""
        left = [_LEFT.encode()] * len(self._peers)
        with contextlib.suppress(RuntimeError):  # the store is lost, which its watch tells
            while self._rank == 0 and [self._store.get(f"beat_{p}") for p in self._peers] != left:
                time.sleep(0.1)

    def stop(self) -> None:
        """Stops the thread and signs this process off."""
        self._stopped.set()
        self._thread.join(self._limit_s)

    def name_absent(self, error: RuntimeError) -> None:
        """Names the processes absent from a collective that timed out.

        Every process that waited gets the error at about the same time and records it; the others
        are absent.

        Raises:
            ProcessLostError: names them.
        """
        if "timed out" not in str(error).lower():
            return
        self._store.set(f"waited_{self._rank}", "")
        until = time.monotonic() + max(_ROLL_CALL_S, self._limit_s)
        absent = [rank for rank in range(self._world_size) if rank != self._rank]
        while absent and time.monotonic() < until:
            time.sleep(0.1)
            absent = [rank for rank in absent if not self._store.check([f"waited_{rank}"])]
        if absent:
            message = (
                f"{self._describe(absent)} did not come to an exchange in which the others waited "
                "for it, but lives: it may be reading from a file system that does not answer "
                f"(`process_timeout`; the wait was {error})"
            )
            raise ProcessLostError(as_flags(message, ("process_timeout",))) from error

    def _run(self) -> None:
        interval = self._limit_s / _BEATS_PER_LIMIT
        heard: dict[int, tuple[bytes, float]] = {}
        last_turn = time.monotonic()
        while True:
            began = time.monotonic()
            if began - last_turn > self._limit_s / 2:
                heard.clear()  # this process was frozen itself, perhaps all of them were
            try:
                lost = self._turn(began, heard)
            except RuntimeError as error:  # the store is gone
                self._failure = f" ({str(error).partition(chr(10))[0]})"
                return
            if lost and not self._stopped.is_set():
                self._end(
                    f"{self._describe(lost)} gave no sign of life for {self._limit_s:g} s and "
                    "holds up the others: the job ends (`process_timeout` says how long to wait)"
                )
                self._stopped.set()
                return
            last_turn = began
            self._turns += 1
            if self._stopped.wait(interval):
                with contextlib.suppress(RuntimeError):  # the store may have left before
                    self._store.set(f"beat_{self._rank}", _LEFT)
                return

    def _watch_store(self) -> None:
        """Ends this process where the store does not answer a turn.

        One that rank 0 holds also ends when rank 0 fails: then this process soon does too.
        """
        interval = self._limit_s / _BEATS_PER_LIMIT
        turns, silent_s = -1, 0.0
        while not self._stopped.is_set():
            if self._turns != turns:
                turns, silent_s = self._turns, 0.0
            elif silent_s > self._limit_s:
                where = ":".join(os.environ.get(f"MASTER_{n}", "?") for n in ("ADDR", "PORT"))
                holder = f", with rank 0 ({self._names[0]})," if 0 in self._names else ""
                self._end(
                    f"the store of the job at {where}{holder} has not answered for "
                    f"{self._limit_s:g} s{self._failure}: the process that holds it has ended or "
                    "is frozen, or its machine is lost"
                )
                return
            began = time.monotonic()
            if self._stopped.wait(interval):
                return
            # At most, since this process may have been frozen itself, perhaps with all others.
            silent_s += min(time.monotonic() - began, 2 * interval)

    def _turn(self, now: float, heard: dict[int, tuple[bytes, float]]) -> list[int]:
        """Writes a heartbeat and returns the lost processes."""
        self._store.set(f"beat_{self._rank}", str(self._turns))
        lost = []
        for peer in self._peers:
            value = self._store.get(f"beat_{peer}")
            self._name(peer)  # while the store answers
            if value == _LEFT.encode() or heard.get(peer, (b"", 0.0))[0] != value:
                heard[peer] = (value, now)
            elif now - heard[peer][1] > self._limit_s:
                lost.append(peer)
        return lost

    def _describe(self, ranks: Iterable[int]) -> str:
        return ", ".join(f"rank {r} ({self._name(r)})" for r in ranks)

    def _name(self, rank: int) -> str:
        if rank not in self._names:
            self._names[rank] = self._store.get(f"who_{rank}").decode()
        return self._names[rank]
