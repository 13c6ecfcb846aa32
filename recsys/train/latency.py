# SPDX-License-Identifier: Apache-2.0
"""The inference benchmark of every model: latency and throughput for each batch size."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence

import torch

from recsys.train.timing import LatencySummary, synchronize

DISTINCT_INPUTS = 64
"""Inputs that are worth keeping: one over and over would stay in the cache."""
_WARMUP_STEPS = 10

TABLE_HEAD = "   batch   mean ms    p50 ms    p90 ms    p99 ms     samples/s"


@dataclasses.dataclass(frozen=True, slots=True)
class InferenceFigures:
    """Latency of one batch size; the batch lies on the device already.

    Attributes:
        batch_size: samples of a batch.
        latency: over the measured steps.
        samples_per_s: batch size over the mean latency.
    """

    batch_size: int
    latency: LatencySummary
    samples_per_s: float

    def table_row(self) -> str:
        """Returns the figures under `TABLE_HEAD`."""
        latency = self.latency
        return (
            f"{self.batch_size:8d} {latency.mean_s * 1e3:9.3f} {latency.p50_s * 1e3:9.3f} "
            f"{latency.p90_s * 1e3:9.3f} {latency.p99_s * 1e3:9.3f} {self.samples_per_s:13,.0f}"
        )

    def log_values(self) -> dict[str, float]:
        """Returns the figures under their names in the log."""
        size = self.batch_size
        return {
            f"mean_inference_latency_batch_{size}": self.latency.mean_s,
            f"p50_inference_latency_batch_{size}": self.latency.p50_s,
            f"p90_inference_latency_batch_{size}": self.latency.p90_s,
            f"p99_inference_latency_batch_{size}": self.latency.p99_s,
            f"mean_inference_throughput_batch_{size}": self.samples_per_s,
        }


@torch.inference_mode()
def measure_latency(
    calls: Sequence[Callable[[], object]],
    batch_size: int,
    device: torch.device,
    num_steps: int,
) -> InferenceFigures:
    """Measures the latency of one batch size.

    Args:
        calls: each answers another input that is on the device; taken in turn.
        batch_size: samples of each input.
        device: each step waits for it, since latency is what is asked for.
        num_steps: measured steps, after ten that are not.
    """
    durations = []
    steps = range(-_WARMUP_STEPS, num_steps)
    for step, call in zip(steps, itertools.cycle(calls), strict=False):
        synchronize(device)
        started = time.perf_counter()
        call()
        synchronize(device)
        if step >= 0:
            durations.append(time.perf_counter() - started)
    latency = LatencySummary.of(durations)
    return InferenceFigures(batch_size, latency, batch_size / latency.mean_s)
