# SPDX-License-Identifier: Apache-2.0
"""Settings of benchmark and profile, and what they add to a run."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from recsys.errors import UserError
from recsys.pages.page import write_page
from recsys.pages.run_page import run_page
from recsys.settings import require_positive, setting
from recsys.train.loop import BatchT, StepObserver
from recsys.train.measure.benchmark import Counts, StepBenchmark
from recsys.train.measure.profiler import TABLE_FILE, TRACE_FILE, StepProfiler
from recsys.train.recipe import Config, Machine
from recsys.train.run_log import read_run_log

_WARMUP_STEPS = 10


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasureConfig:
    """Settings of benchmark and profile."""

    run_benchmark: bool = setting(
        False,
        "Measure the first steps after a warm-up of --benchmark_warmup_steps (10 if not given): "
        "throughput, step time, peak memory. Each waits for the device; then training goes on",
        resumable=True,
    )
    benchmark_steps: int = setting(100, "Steps of --run_benchmark", resumable=True)
    run_profiler: bool = setting(
        False,
        "Write a Chrome trace and a table of operators of three steps after the warm-up and the "
        "benchmark, into the folder profile of the checkpoints, or else beside the log",
        resumable=True,
    )

    report: str | None = setting(
        None,
        "File of a page with the curves, times, metrics and settings of a training, FILE.html",
        resumable=True,
    )

    def __post_init__(self) -> None:
        """Refuses a benchmark without steps."""
        require_positive(self, "benchmark_steps")


def profile_folder(config: Config) -> Path:
    """Returns the folder that --run_profiler writes."""
    return (config.checkpoint_folder or Path(config.run.log_path).parent) / "profile"


def write_report(config: Config) -> None:
    """Writes the page of --report from the log, if asked for.

    Raises:
        UserError: the page cannot be written.
    """
    if config.measure.report is None:
        return
    path, profile = Path(config.measure.report), profile_folder(config).resolve()
    folder = path.resolve().parent
    links = [
        (text, os.path.relpath(profile / name, folder))
        for text, name in (
            ("Times of operators", TABLE_FILE),
            ("Trace of the profiler", TRACE_FILE),
        )
        if config.measure.run_profiler and (profile / name).is_file()
    ]
    try:
        write_page(path, run_page(read_run_log(Path(config.run.log_path)), path.stem, links))
    except OSError as error:
        raise UserError(f"`report` {path} cannot be written: {error.strerror}") from error


def step_observers(
    config: Config, machine: Machine, count: Callable[[BatchT], Counts]
) -> list[StepObserver[BatchT]]:
    """Builds the observers that the settings ask for.

    Args:
        config: all settings of the run.
        machine: device and processes.
        count: counts samples, and what else a model has, of a batch.

    Raises:
        UserError: the profile cannot be written.
    """
    measure, run = config.measure, config.run
    given = "benchmark_warmup_steps" in config.explicit
    warmup = run.benchmark_warmup_steps if given else _WARMUP_STEPS
    observers: list[StepObserver[BatchT]] = []
    if measure.run_benchmark:
        observers.append(StepBenchmark(warmup, measure.benchmark_steps, count, machine))
        warmup += measure.benchmark_steps
    if measure.run_profiler and machine.processes.is_first:
        observers.append(StepProfiler(profile_folder(config), warmup, machine))
    return observers
