# SPDX-License-Identifier: Apache-2.0
"""Times function calls on a device."""

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

Work = Callable[[], object]

CPU = torch.device("cpu")
_LEAD_CYCLES = 4_000_000


def in_turns(function: Callable[..., object], inputs: Iterable[tuple[Any, ...]]) -> Work:
    """Returns a function that calls another with each tuple of arguments in turn."""
    turns = itertools.cycle(inputs)
    return lambda: function(*next(turns))


def seconds_per_call(work: Work, device: torch.device = CPU, calls: int = 1) -> float:
    """Measures the mean seconds of a call over `calls` calls.

    On a CUDA device the stream first spins for about two milliseconds, so that the calls queue up
    behind it and the events measure the kernels, not their launches.
    """
    if device.type == "cuda":
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        torch.cuda.synchronize()
        torch.cuda._sleep(_LEAD_CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3 / calls
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - started) / calls
