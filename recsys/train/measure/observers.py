# SPDX-License-Identifier: Apache-2.0
"""Benchmark, profile and report of a run."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from recsys.errors import UserError
from recsys.train.config import Config
from recsys.train.loop import BatchT, StepObserver
from recsys.train.measure.benchmark import Counts, StepBenchmark
from recsys.train.measure.profiler import TABLE_FILE, TRACE_FILE, StepProfiler
from recsys.train.measure.report import run_page, write_page
from recsys.train.recipe import Machine
from recsys.train.run_log import RunLog

_WARMUP_STEPS = 10


def profile_folder(config: Config) -> Path:
    """Returns the folder to which --run_profiler writes."""
    return (config.checkpoint_folder or Path(config.run.log_path).parent) / "profile"


def write_report(config: Config, log: RunLog) -> None:
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
        write_page(path, run_page(log.entries(), path.stem, links, _command()))
    except OSError as error:
        raise UserError(
            f"`report` {path} cannot be written: {error.strerror}", setting="report"
        ) from error


def _command() -> str:
    """Returns the command line that repeats this process."""
    spec, (program, *arguments) = sys.modules["__main__"].__spec__, sys.argv
    return f"{program if spec is None else f'python -m {spec.name}'} {shlex.join(arguments)}"


def step_observers(
    config: Config, machine: Machine, count: Callable[[BatchT], Counts]
) -> list[StepObserver[BatchT]]:
    """Builds the observers that the settings ask for.

    Args:
        machine: device and processes.
        count: returns the samples, and any other counts, of a batch.

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
