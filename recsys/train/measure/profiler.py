# SPDX-License-Identifier: Apache-2.0
"""Profile of training steps: a Chrome trace and a table of operators."""

from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from recsys.errors import UserError
from recsys.train.recipe import Machine

TRACE_FILE, TABLE_FILE = "trace.json.gz", "operators.txt"

_STEPS = 3
"""Few steps, because each of their operators is an event of the trace: some MB in all."""

_ROWS, _PRINTED = 100, 8


class StepProfiler:
    """Profiles steps after a warm-up with PyTorch's profiler.

    Args:
        folder: folder for the files; files of an earlier profile are replaced.
        warmup_steps: number of first steps to leave out; the profiler needs one more to start.
        machine: device of the model; prints the lines.

    Raises:
        UserError: the folder cannot be created.
    """

    def __init__(self, folder: Path, warmup_steps: int, machine: Machine) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"`run_profiler` cannot write to {folder}: {error.strerror}; name another folder "
                "with `log_path`",
                settings=("run_profiler", "log_path"),
            ) from error
        self._folder = folder
        self._warmup_steps = warmup_steps
        self._machine = machine
        self._steps = 0
        self._values: dict[str, Any] | None = None
        self._is_finished = False
        activities = [ProfilerActivity.CPU]
        if machine.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=_STEPS, repeat=1),
            on_trace_ready=self._write,
        )
        if warmup_steps == 0:
            self._profiler.start()

    def __call__(self, batch: Sized, began: float, waited_s: float) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Advances the profiler, which takes seconds at its end; returns the values then."""
        self._steps += not self._is_finished
        if self._is_finished or self._steps < self._warmup_steps:
            return None
        if self._steps == self._warmup_steps:
            self._profiler.start()
        else:
            self._profiler.step()
        return self.finish() if self._steps == self._warmup_steps + 1 + _STEPS else {}

    def finish(self) -> Mapping[str, Any] | None:
        """Ends the profiler, unless it has ended; returns values to log."""
        if self._is_finished:
            return None
        self._is_finished = True
        if self._steps > self._warmup_steps:
            self._profiler.stop()
        if self._values is None:
            self._machine.print_line(
                f"No step was profiled: all {self._steps} were part of the warm-up"
            )
        return self._values or {}

    def _write(self, profiler: torch.profiler.profile) -> None:
        """Writes trace and table, and prints the first rows of the table."""
        unfinished = self._folder / f"unfinished.{TRACE_FILE}"
        profiler.export_chrome_trace(str(unfinished))
        unfinished.replace(self._folder / TRACE_FILE)
        on_gpu = self._machine.device.type == "cuda"
        operators = profiler.key_averages()
        table = operators.table(
            sort_by="self_device_time_total" if on_gpu else "self_cpu_time_total", row_limit=_ROWS
        )
        unfinished = self._folder / f"unfinished.{TABLE_FILE}"
        unfinished.write_text(table)
        unfinished.replace(self._folder / TABLE_FILE)
        times = {
            operator.key: (
                operator.self_device_time_total if on_gpu else operator.self_cpu_time_total,
                operator.count,
            )
            for operator in operators
        }
        self._print(times)
        total = sum(microseconds for microseconds, _ in times.values())
        self._values = {
            "profile_folder": str(self._folder),
            "profile_steps": min(self._steps - self._warmup_steps - 1, _STEPS),
            "profile_operators": len(times),
            "profile_self_time_s": total / 1e6,
        }

    def _print(self, times: Mapping[str, tuple[float, int]]) -> None:
        """Prints the files, and the operators that take the most time.

        Args:
            times: operator -> (microseconds in the operator itself, calls).
        """
        print_line = self._machine.print_line
        print_line(f"Profile: {self._folder / TRACE_FILE} (for ui.perfetto.dev), {TABLE_FILE}")
        total = max(sum(microseconds for microseconds, _ in times.values()), 1)
        largest = sorted(times.items(), key=lambda entry: -entry[1][0])[:_PRINTED]
        for name, (microseconds, calls) in largest:
            what = "between operators" if name.startswith("ProfilerStep") else name
            percent, ms = f"{microseconds / total:6.1%}", f"{microseconds / 1e3:9.2f} ms"
            print_line(f"  {percent} {ms} {calls:6} {what}")
