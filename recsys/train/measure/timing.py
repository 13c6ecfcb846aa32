# SPDX-License-Identifier: Apache-2.0
"""Measures the throughput of training and the latency of inference."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a client measures latencies of a server without torch
    import torch

DISTINCT_INPUTS = 64
"""Number of different inputs to measure with; a single one would stay in the cache."""
_WARMUP_STEPS = 10

TABLE_HEAD = "   batch   mean ms    p50 ms    p90 ms    p99 ms     samples/s"


def synchronize(device: "torch.device") -> None:
    """Waits for the work queued on a GPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


class ThroughputWindow:
    """Samples per second from the first step after the warm-up until now.

    The clock is read only at both ends, each time after a synchronisation. So nothing slows down
    the steps in between, and every one of them counts.

    Args:
        warmup_steps: number of first steps to leave out.
        device: device of the model.
    """

    def __init__(self, warmup_steps: int, device: "torch.device") -> None:
        self._warmup_steps = warmup_steps
        self._device = device
        self._steps = 0
        self._samples = 0
        self._excluded_s = 0.0
        self._start: float | None = None

    def start(self) -> None:
        """Starts the window; call it before the first step."""
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
        """Subtracts the time of evaluations and checkpoints."""
        if self._start is not None:
            self._excluded_s += seconds

    def samples_per_s(self) -> float:
        """Returns the throughput so far; NaN if no step was counted."""
        if self._start is None or self._samples == 0:
            return float("nan")
        synchronize(self._device)
        return self._samples / (time.perf_counter() - self._start - self._excluded_s)


def rate_in_words(per_s: float, what: str, decimals: int = 0) -> str:
    """Formats a throughput; NaN means that no step was measured."""
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
        """Summarises durations, at least one."""
        p50, p90, p99 = np.percentile(durations_s, [50, 90, 99])
        return cls(float(np.mean(durations_s)), float(p50), float(p90), float(p99))


@dataclasses.dataclass(frozen=True, slots=True)
class InferenceLatency:
    """Latency of inference on batches of one size.

    Attributes:
        batch_size: samples of a batch.
        latency: mean and percentiles over the measured steps.
        samples_per_s: batch size divided by the mean latency.
    """

    batch_size: int
    latency: LatencySummary
    samples_per_s: float

    def table_row(self) -> str:
        """Formats the columns of `TABLE_HEAD`."""
        latency = self.latency
        return (
            f"{self.batch_size:8d} {latency.mean_s * 1e3:9.3f} {latency.p50_s * 1e3:9.3f} "
            f"{latency.p90_s * 1e3:9.3f} {latency.p99_s * 1e3:9.3f} {self.samples_per_s:13,.0f}"
        )

    def log_values(self) -> dict[str, float]:
        """Returns latency and throughput by log key."""
        size = self.batch_size
        return {
            f"mean_inference_latency_batch_{size}": self.latency.mean_s,
            f"p50_inference_latency_batch_{size}": self.latency.p50_s,
            f"p90_inference_latency_batch_{size}": self.latency.p90_s,
            f"p99_inference_latency_batch_{size}": self.latency.p99_s,
            f"mean_inference_throughput_batch_{size}": self.samples_per_s,
        }


def measure_latency(
    calls: Sequence[Callable[[], object]],
    batch_size: int,
    device: "torch.device",
    num_steps: int,
) -> InferenceLatency:
    """Measures the latency of one batch size.

    Args:
        calls: inferences on different batches on the device; called in turn.
        batch_size: samples of each batch.
        device: device to wait for after each step.
        num_steps: number of measured steps, after ten warm-up steps.
    """
    import torch

    durations = []
    steps = range(-_WARMUP_STEPS, num_steps)
    with torch.inference_mode():
        for step, call in zip(steps, itertools.cycle(calls), strict=False):
            synchronize(device)
            started = time.perf_counter()
            call()
            synchronize(device)
            if step >= 0:
                durations.append(time.perf_counter() - started)
    latency = LatencySummary.of(durations)
    return InferenceLatency(batch_size, latency, batch_size / latency.mean_s)
