# SPDX-License-Identifier: Apache-2.0
"""Memory of a server's processes over time, and whether it grows."""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from benchmark.processes import process_memory

_EVERY_S = 3.0
_WARM = 1 / 9
"""Part of the fitted time that is left out at the start of a process: it grows in any case then."""
_BLOCKS = 30
"""Samples are taken together in so many blocks: neighbours are no independent evidence."""


class Slope(NamedTuple):
    """A growth of memory: MiB an hour and its standard error; both NaN with too few samples."""

    mib_per_h: float
    error: float

    @property
    def is_flat(self) -> bool:
        """Whether the slope is within what chance explains."""
        return not self.mib_per_h > 2 * self.error


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """Samples of one process: seconds from the start, and MiB."""

    seconds: list[float]
    mib: list[float]


def slope(series: Iterable[Series], start: float, end: float) -> Slope:
    """Fits one slope to samples between two moments, and an own level for each series."""
    block_s = (end - start) / _BLOCKS
    times, values, levels = [], [], []
    for number, each in enumerate(series):
        seconds, mib = np.array(each.seconds), np.array(each.mib)
        grown = seconds.min(initial=end) + _WARM * (end - start)
        kept = (seconds >= max(start, grown)) & (seconds < end)
        blocks = ((seconds[kept] - start) / block_s).astype(int)
        for block in np.unique(blocks):
            times.append(seconds[kept][blocks == block].mean())
            values.append(float(np.median(mib[kept][blocks == block])))
            levels.append(number)
    of = np.array(levels)
    x, y = np.array(times) / 3600, np.array(values)
    for number in np.unique(of):
        x[of == number] -= x[of == number].mean()
        y[of == number] -= y[of == number].mean()
    freedom, spread = len(x) - len(np.unique(of)) - 1, float(x @ x)
    if freedom < 1 or not spread:
        return Slope(math.nan, math.nan)
    fitted = float(x @ y) / spread
    rest = y - fitted * x
    return Slope(fitted, math.sqrt(float(rest @ rest) / freedom / spread))


class MemorySampler:
    """Samples the memory of processes in a thread; a context manager.

    Args:
        find: returns name -> process ids; the name of a killed process's successor is another one.
        start: moment of `time.perf_counter` from which the seconds of samples count.

    Attributes:
        series: name -> samples of the memory of its processes together.
    """

    def __init__(self, find: Callable[[], Mapping[str, Sequence[int]]], start: float) -> None:
        self.series: dict[str, Series] = {}
        self._find, self._start = find, start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            for name, pids in self._find().items():
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    mib = sum(process_memory(pid).pss for pid in pids) / (1 << 20)
                    series = self.series.setdefault(name, Series([], []))
                    series.seconds.append(time.perf_counter() - self._start)
                    series.mib.append(mib)
