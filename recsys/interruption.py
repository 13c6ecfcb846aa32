# SPDX-License-Identifier: Apache-2.0
"""Signals that end a program in order, or wait for a block."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType


class StopRequest:
    """Records SIGTERM, SIGINT and SIGHUP, to be read between steps.

    A second signal ends the process at once. Under nohup, SIGHUP stays ignored.

    Args:
        notice: text to print after the name of a received signal.

    Attributes:
        signal_name: name of the received signal, or None.
    """

    def __init__(self, notice: str = "") -> None:
        self.signal_name: str | None = None
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
        self.signal_name = signal.Signals(number).name
        for s in self._previous:
            signal.signal(s, signal.SIG_DFL)
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
            signal.signal(s, handler)


@contextlib.contextmanager
def interrupted_after() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block.

    A handler does it: a blocked signal could reach another thread, and Python would raise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C is raised in the main thread alone
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if received:
            signal.raise_signal(signal.SIGINT)
