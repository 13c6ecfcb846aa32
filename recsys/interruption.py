# SPDX-License-Identifier: Apache-2.0
"""Signals that end a program cleanly, or wait until the end of a block."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType

SAME_REQUEST_S = 5
"""Seconds in which a second signal counts as the same request.

Schedulers signal all processes of a job, and torchrun passes its own signal on to them.
"""

_PR_SET_PDEATHSIG = 1


class StopRequest:
    """Records SIGTERM, SIGINT and SIGHUP, to be read between steps.

    A second signal that comes later ends the process at once. So does Ctrl-C at any time, except
    under torchrun. Under nohup, SIGHUP stays ignored.

    Args:
        notice: text to print after the name of a received signal.

    Attributes:
        signal_name: name of the received signal, or None.
    """

    def __init__(self, notice: str = "") -> None:
        self.signal_name: str | None = None
        self._received = 0.0
        self._notice = notice
        caught = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._previous = {
            s: signal.getsignal(s)
            for s in caught
            if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN
        }

    def __enter__(self) -> "StopRequest":
        for s in self._previous:
            signal.signal(s, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal_name is not None:
            if time.monotonic() > self._received + SAME_REQUEST_S:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        self.signal_name, self._received = signal.Signals(number).name, time.monotonic()
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        else:
            send_when_parent_ends(0)  # torchrun would not wait until this process has saved
        if self._notice:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, f"{self.signal_name}: {self._notice}\n".encode())

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for s, handler in self._previous.items():
            # After a signal the program ends, and the same request may still arrive.
            if self.signal_name is None or signal.getsignal(s) != self._handle:
                signal.signal(s, handler)


@contextlib.contextmanager
def interrupted_after() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block.

    It uses a handler: a blocked signal could reach another thread, and Python would raise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C is only raised in the main thread
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if received:
            signal.raise_signal(signal.SIGINT)


def send_when_parent_ends(number: int) -> None:
    """Makes Linux send this process a signal when its parent ends for any reason; 0 sends none."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number))
