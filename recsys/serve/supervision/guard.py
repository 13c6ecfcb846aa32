# SPDX-License-Identifier: Apache-2.0
"""Starts a program's watcher again when it dies or stands still.

The guard is the process that a user or an orchestrator started. It forks the watcher, has nothing
else to do, and so little that can fail. The watcher ends when its guard was killed, and the kernel
ends a server whose watcher was killed.
"""

import collections
import contextlib
import datetime
import faulthandler
import os
import signal
import time
from collections.abc import Callable

from recsys.errors import FAILED
from recsys.interruption import StopRequest
from recsys.serve.server.install import ServerError
from recsys.serve.server.instances import processes

TICK_S = 0.5
_STANDSTILL_S = 60
"""Longest time between two signs of life of the watcher."""
_WINDOW_S = 600.0
_LONGEST_PAUSE_S = 30.0


class Restarts:
    """Restarts of the server or of a model within ten minutes.

    Attributes:
        reasons: time and reason of each of the last ones.
        number: all since the program began.
    """

    def __init__(self, most: int, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        self.reasons: list[str] = []
        self.number = 0
        self._most, self._say, self._stopped = most, say, stopped
        self._recent: collections.deque[float] = collections.deque()

    def note(self, reason: object) -> None:
        """Adds a restart.

        Raises:
            ServerError: there were too many.
        """
        now = time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - _WINDOW_S:
            self._recent.popleft()
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.reasons = [*self.reasons[-99:], f"{when} {reason}"]
        self.number += 1
        if len(self._recent) > self._most:
            raise ServerError(
                f"{reason}; it was started again {self._most} times within ten minutes "
                "(`max_restarts`)"
            )

    def tell(self, what: str) -> None:
        """Says why the last one came, and what it does."""
        when, _, reason = self.reasons[-1].partition(" ")
        self._say(f"{when} restart {self.number}: {reason}; {what}")

    def pause(self) -> None:
        """Says why the next one comes, and waits for it or `stopped`."""
        pause = min(2.0 ** (len(self._recent) - 1) - 1, _LONGEST_PAUSE_S)
        self.tell(f"starting again in {pause:.0f} s")
        deadline = time.monotonic() + pause
        while time.monotonic() < deadline and not self._stopped():
            time.sleep(TICK_S)


def fork_watcher(restarts: Restarts, stop: StopRequest) -> int | None:
    """Returns None in the watcher, its exit status in the guard.

    Raises:
        ServerError: it had to be started again too often.
    """
    while True:
        if (watcher := os.fork()) == 0:
            os.setsid()  # its processes are known by it, and Ctrl-C reaches the guard alone
            faulthandler.register(signal.SIGALRM, chain=True)  # says where it stood still
            _stop_at_any(stop)
            return None
        end = _wait(watcher, stop)
        _end_session(watcher)
        if isinstance(end, int):
            return end
        if stop.signal_name:
            return FAILED
        restarts.note(f"the supervisor (process {watcher}) {end}")
        restarts.pause()


def _stop_at_any(stop: StopRequest) -> None:
    """Has a second signal change nothing.

    One to all processes comes from the guard as well.
    """

    def note(number: int, _: object) -> None:
        stop.signal_name = signal.Signals(number).name

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, note)


def sign_of_life() -> None:
    """Puts off the end of a watcher that stands still."""
    signal.alarm(_STANDSTILL_S)


def _wait(watcher: int, stop: StopRequest) -> int | str:
    """Returns a watcher's exit status, or why it watches no more."""
    told = False
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)  # orphans of a container, too
        if pid == watcher and os.WIFSTOPPED(status):
            return f"was stopped by {signal.Signals(os.WSTOPSIG(status)).name}"
        if pid == watcher:
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGALRM:
                return f"stood still for {_STANDSTILL_S} s"
            return code if code >= 0 else f"ended with {exit_text(code)}"
        if stop.signal_name and not told:
            os.kill(watcher, signal.SIGTERM)
            told = True
        if not pid:
            time.sleep(TICK_S / 5)


def _end_session(leader: int) -> None:
    """Ends the processes of a watcher that are left."""
    deadline = time.monotonic() + _STANDSTILL_S
    while left := [p.pid for p in processes() if p.session == leader and p.state != "Z"]:
        if time.monotonic() > deadline:
            break  # the kernel holds them
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(TICK_S / 5)


def exit_text(code: int) -> str:
    """Returns the exit code of a child process for readers."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
