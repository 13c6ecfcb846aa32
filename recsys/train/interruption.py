# SPDX-License-Identifier: Apache-2.0
"""Ends a run in order after SIGTERM or SIGINT."""

import signal
from types import FrameType, TracebackType


class StopRequest:
    """Records SIGTERM and SIGINT, to be read between steps.

    A second signal ends the process at once.

    Attributes:
        signal_name: name of the received signal, or None.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._previous = {s: signal.getsignal(s) for s in self._SIGNALS}

    def __enter__(self) -> "StopRequest":
        for s in self._SIGNALS:
            signal.signal(s, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal_name = signal.Signals(number).name
        for s in self._SIGNALS:
            signal.signal(s, signal.SIG_DFL)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for s, handler in self._previous.items():
            signal.signal(s, handler)
