# SPDX-License-Identifier: Apache-2.0
"""Clocks: device-aware synchronisation, throughput over a window, latency percentiles."""

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np
import torch


def synchronize(device: torch.device) -> None:
    """Waits until everything queued on the device is done; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class ThroughputWindow:
    """Samples per second from the first step after the warm-up to now.

    The clock is read at the two ends only, after a synchronisation there, so nothing inside the
    window is slowed down, and every step in it counts.

    Args:
        warmup_steps: steps to leave out.
        device: of the model.
    """

    def __init__(self, warmup_steps: int, device: torch.device) -> None:
        self._warmup_steps = warmup_steps
        self._device = device
        self._steps = 0
        self._samples = 0
        self._excluded_s = 0.0
        self._start: float | None = None

    def start(self) -> None:
        """Begins counting; call before the first step."""
        if self._warmup_steps == 0:
            self._begin()

    def _begin(self) -> None:
        synchronize(self._device)
        self._start = time.perf_counter()

    def step(self, num_samples: int) -> None:
        """Counts a finished step."""
        self._steps += 1
        if self._start is not None:
            self._samples += num_samples
        elif self._steps >= self._warmup_steps:
            self._begin()

    def exclude(self, seconds: float) -> None:
        """Leaves time that is not training (evaluation, checkpoints) out of the window."""
        if self._start is not None:
            self._excluded_s += seconds

    def samples_per_s(self) -> float:
        """Returns the throughput so far; nan where no step was counted."""
        if self._start is None or self._samples == 0:
            return float("nan")
        synchronize(self._device)
        return self._samples / (time.perf_counter() - self._start - self._excluded_s)


def rate_in_words(per_s: float, what: str, decimals: int = 0) -> str:
    """Returns a throughput to print; nan says that no step was measured."""
    if math.isnan(per_s):
        return "no throughput measured"
    return f"{per_s:,.{decimals}f} {what}/s"


@dataclasses.dataclass(frozen=True, slots=True)
class LatencySummary:
    """Mean and percentiles of a list of durations, in seconds."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float

    @classmethod
    def of(cls, durations_s: Sequence[float]) -> "LatencySummary":
        """Summarises at least one duration."""
        p50, p90, p99 = np.percentile(durations_s, [50, 90, 99])
        return cls(float(np.mean(durations_s)), float(p50), float(p90), float(p99))
