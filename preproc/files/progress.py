# SPDX-License-Identifier: Apache-2.0
"""Progress of a stage: counters, shown as a bar, periodic lines or JSON."""

import contextlib
import ctypes
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal, TextIO, get_args

from tqdm import tqdm

from recsys.program import with_flags

ProgressMode = Literal["auto", "bar", "json", "none"]
PROGRESS_MODES: tuple[ProgressMode, ...] = get_args(ProgressMode)
PROGRESS_HELP = f"How to report progress: {', '.join(PROGRESS_MODES)}."

Counters = Callable[[], tuple[int, int]]
"""Function that returns (bytes done, rows done) of a stage."""

_BAR_PERIOD_S = 0.2
_JSON_PERIOD_S = 1.0
_LINE_PERIOD_S = 10.0


class Progress(ctypes.Structure):
    """Counters that threads and the C++ kernel advance while others read them."""

    _fields_ = (
        ("bytes", ctypes.c_uint64),
        ("rows", ctypes.c_uint64),
        ("stop", ctypes.c_uint64),
    )
    bytes: int
    rows: int
    stop: int

    def cancel(self) -> None:
        """Stops every kernel call that uses this object, with CancelledError."""
        self.stop = 1

    def counters(self) -> tuple[int, int]:
        """Returns (bytes, rows) done."""
        return self.bytes, self.rows


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """Counts of finished units, and errors for the user; tallies can be added."""

    text_bytes: int = 0
    rows: int = 0
    lines: int = 0
    bad: int = 0
    errors: tuple[str, ...] = ()

    def __add__(self, other: "Tally") -> "Tally":
        """Adds the counts of other units."""
        names = [f.name for f in dataclasses.fields(self)]
        return Tally(*(getattr(self, n) + getattr(other, n) for n in names))


class ProgressReporter:
    """Reports stages on a stream.

    Args:
        mode: `auto` shows a bar on a terminal, otherwise a line every ten seconds.
        stream: receives the reports; None uses standard error.
    """

    def __init__(self, mode: ProgressMode, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._mode: Literal["bar", "line", "json", "none"] = (
            ("bar" if self._stream.isatty() else "line") if mode == "auto" else mode
        )

    @contextlib.contextmanager
    def stage(self, name: str, bytes_total: int, counters: Counters) -> Iterator[None]:
        """Reports `counters` from a thread while the body runs, and once at the end."""
        if self._mode == "none":
            yield
            return
        stop = threading.Event()
        report = self._bar if self._mode == "bar" else self._lines
        thread = threading.Thread(
            target=report, args=(name, bytes_total, counters, stop), daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def note(self, message: str) -> None:
        """Prints a message, with settings spelled as flags; as JSON in mode `json`."""
        message = with_flags(message)
        if self._mode == "json":
            self._print(json.dumps({"message": message}))
        elif self._mode != "none":
            self._print(message)

    def _print(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # `2>&1 | head` must not end the work
            print(text, file=self._stream, flush=True)

    def _bar(self, name: str, total: int, counters: Counters, stop: threading.Event) -> None:
        started = time.monotonic()
        first_done, first_rows = counters()  # by an earlier, interrupted run
        with tqdm(
            total=total,
            initial=min(first_done, total),
            desc=f"{name:>7}",
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            file=self._stream,
            dynamic_ncols=True,
        ) as bar:
            finished = False
            while not finished:
                finished = stop.wait(_BAR_PERIOD_S)
                done, rows = counters()
                if rows:
                    rate = (rows - first_rows) / max(time.monotonic() - started, 1e-9)
                    bar.set_postfix_str(f"{rows:,} rows, {rate:,.0f} rows/s", refresh=False)
                bar.update(min(done, total) - bar.n)

    def _lines(self, name: str, total: int, counters: Counters, stop: threading.Event) -> None:
        started = time.monotonic()
        first_done, first_rows = counters()  # by an earlier, interrupted run
        finished = False
        while not finished:
            finished = stop.wait(_JSON_PERIOD_S if self._mode == "json" else _LINE_PERIOD_S)
            elapsed = max(time.monotonic() - started, 1e-9)
            done, rows = counters()
            total = max(total, done)  # for compressed text the total is an estimate
            rate = (rows - first_rows) / elapsed
            new = done - first_done
            eta = elapsed * (total - done) / new if new else None
            if self._mode == "json":
                self._print(
                    json.dumps(
                        {
                            "stage": name,
                            "bytes_done": done,
                            "bytes_total": total,
                            "rows": rows,
                            "rows_per_s": round(rate),
                            "eta_s": None if eta is None else round(max(eta, 0), 1),
                        }
                    )
                )
            else:
                percent = f"{100 * done / total:.0f} %" if total else "done"
                left = f", {eta:.0f} s left" if eta and not finished else f", {elapsed:.1f} s"
                speed = f", {rows:,} rows, {rate:,.0f} rows/s" if rows else ""
                self._print(f"{name}: {percent} of {total / 1e6:,.0f} MB{speed}{left}")
