# SPDX-License-Identifier: Apache-2.0
"""Times function calls on a device, several candidates in turns."""

import time
from collections.abc import Callable, Mapping

import torch

from benchmark.processes import run_interleaved

Work = Callable[[], object]

CPU = torch.device("cpu")
_LEAD_CYCLES = 4_000_000


def seconds_per_call(work: Work, device: torch.device = CPU, calls: int = 1) -> float:
    """Measures the mean seconds of a call over `calls` calls.

    On a CUDA device the stream first spins for about two milliseconds, so that the calls queue up
    behind it and the events measure the kernels, not their launches.

    Args:
        work: function to time.
        device: device that it uses.
        calls: number of consecutive calls.
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


def time_interleaved(
    candidates: Mapping[str, Work],
    repeats: int,
    *,
    device: torch.device = CPU,
    calls: int = 1,
    warmup: int = 2,
) -> dict[str, list[float]]:
    """Times candidates in turns, `repeats` times, after a warm-up.

    Args:
        candidates: name -> function to time.
        repeats: number of rounds.
        device: device that the functions use.
        calls: consecutive calls per measurement.
        warmup: unmeasured calls of each candidate at the start.

    Returns:
        name -> seconds per call of each round.
    """
    for work in candidates.values():
        for _ in range(warmup):
            work()

    def timer(work: Work) -> Callable[[], float]:
        return lambda: seconds_per_call(work, device, calls)

    return run_interleaved({name: timer(work) for name, work in candidates.items()}, repeats)
