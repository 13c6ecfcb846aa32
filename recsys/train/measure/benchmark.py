# SPDX-License-Identifier: Apache-2.0
"""Benchmark of training steps: throughput, step time, peak memory."""

import collections
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic

import numpy as np

from recsys.sizes import format_bytes
from recsys.train.loop import BatchT
from recsys.train.measure.timing import LatencySummary, synchronize
from recsys.train.memory import peak_memory, reset_peak_memory
from recsys.train.recipe import Machine

Counts = Mapping[str, int]
"""Name -> count in a batch, such as samples; `padded_tokens` is the count with padding."""

PADDED = "padded_tokens"


class StepBenchmark(Generic[BatchT]):
    """Measures whole training steps, including the wait for each batch.

    Args:
        warmup_steps: number of first steps to leave out.
        num_steps: number of steps to measure.
        count: returns the counts of a batch, without waiting for the device.
        machine: device and processes; counts are summed over them, times are those of the first.
    """

    def __init__(
        self,
        warmup_steps: int,
        num_steps: int,
        count: Callable[[BatchT], Counts],
        machine: Machine,
    ) -> None:
        self._warmup_steps = warmup_steps
        self._num_steps = num_steps
        self._count = count
        self._machine = machine
        self._totals: collections.Counter[str] = collections.Counter()
        self._durations: list[float] = []
        self._waits: list[float] = []
        self._steps = 0
        self._is_reported = False
        if warmup_steps == 0:
            reset_peak_memory(machine.device)

    def __call__(self, batch: BatchT, began: float, waited_s: float) -> Mapping[str, Any] | None:
        """Measures a step that was just launched; returns the values after the last one.

        Args:
            batch: batch of the step.
            began: clock when the loop began to wait for the batch.
            waited_s: seconds of that wait.
        """
        self._steps += 1
        if self._is_reported or self._steps < self._warmup_steps:
            return None
        synchronize(self._machine.device)
        if self._steps == self._warmup_steps:
            reset_peak_memory(self._machine.device)
            return None
        self._durations.append(time.perf_counter() - began)
        self._waits.append(waited_s)
        self._totals.update(self._count(batch))
        return self.finish() if len(self._durations) == self._num_steps else None

    def finish(self) -> Mapping[str, Any] | None:
        """Prints and returns the values, unless it already has."""
        if self._is_reported:
            return None
        self._is_reported = True
        print_line = self._machine.print_line
        if not self._durations:
            print_line(f"No step was measured: all {self._steps} were part of the warm-up")
            return None
        values = self._values()
        for line in _lines(values, self._machine.device.type):
            print_line(line)
        return {f"benchmark_{name}": value for name, value in values.items()}

    def _values(self) -> dict[str, float]:
        seconds = sum(self._durations)
        mine = np.array(list(self._totals.values()), np.int64)
        of_all = dict(zip(self._totals, self._machine.processes.sum_integers(mine), strict=True))
        padded = of_all.pop(PADDED, None)
        times = LatencySummary.of(self._durations)
        values = {f"{name}_per_s": number / seconds for name, number in of_all.items()}
        if padded is not None:
            values["padding_share"] = 1 - of_all["tokens"] / padded
        return values | {
            "steps": len(self._durations),
            "warmup_steps": self._warmup_steps,
            "step_time_mean": times.mean_s,
            "step_time_p10": float(np.percentile(self._durations, 10)),
            "step_time_p50": times.p50_s,
            "step_time_p90": times.p90_s,
            "data_wait_share": sum(self._waits) / seconds,
            "peak_memory_bytes": peak_memory(self._machine.device),
        }


def _lines(values: Mapping[str, float], device_type: str) -> list[str]:
    rates = [f"{v:,.1f} {n[:-6]}/s" for n, v in values.items() if n.endswith("_per_s")]
    head = f"Benchmark of {values['steps']:.0f} steps after {values['warmup_steps']:.0f}"
    lines = [f"{head}: {', '.join(rates)}"]
    lines.append(
        f"  step time p50 {values['step_time_p50'] * 1e3:.2f} ms, p90 "
        f"{values['step_time_p90'] * 1e3:.2f} ms; {values['data_wait_share']:.1%} of it waiting "
        "for batches"
    )
    if "padding_share" in values:
        lines.append(
            f"  padding {values['padding_share']:.1%} of the tokens if sequences were padded to "
            "`max_len`"
        )
    kind = "allocated on the GPU" if device_type == "cuda" else "resident in the process"
    lines.append(f"  peak memory {format_bytes(int(values['peak_memory_bytes']))} {kind}")
    return lines
