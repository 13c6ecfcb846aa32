# SPDX-License-Identifier: Apache-2.0
"""Runs the project's programs in processes and reads their logs."""

import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import UserError
from recsys.train.run_log import read_run_log

DLRM, BERT4REC = "dlrm.scripts.main", "bert4rec.scripts.main"


class FailedProgramError(UserError):
    """A program that failed; the message ends with its error output."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoggedRun:
    """Records of a run's log.

    Attributes:
        evaluations: metrics of each evaluation, with `epoch`, `step` and `elapsed_s`, the seconds
            of all runs up to it, resumed ones included.
        final: metrics of the test and throughput, and of --run_benchmark.
        parameters: their number, which the program printed, or 0.
    """

    evaluations: list[dict[str, float]]
    final: dict[str, Any]
    parameters: int = 0


def read_log(path: Path) -> LoggedRun:
    """Reads the log of a run, resumed or not."""
    evaluations: list[dict[str, float]] = []
    final: dict[str, Any] = {}
    before = last = 0.0
    for entry in read_run_log(path):
        elapsed = float(entry["elapsedtime"])
        before += last if elapsed < last else 0.0
        last = elapsed
        step, data = entry["step"], entry["data"]
        if step == "PARAMETER":
            continue
        if not step or "benchmark_steps" in data or "profile_steps" in data:
            final |= data
        elif "loss" not in data:
            evaluations.append(
                {"epoch": step[0], "step": step[1], "elapsed_s": before + elapsed} | data
            )
    return LoggedRun(evaluations, final)


def final_record(log: Path) -> dict[str, Any]:
    """Returns the metrics in the last line of a run's log."""
    metrics: dict[str, Any] = read_run_log(log)[-1]["data"]
    return metrics


def run_module(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Runs a module in a process; returns what it printed, as `run_command`."""
    return run_command([sys.executable, "-m", module, *arguments], env)


def run_command(command: list[str], env: Mapping[str, str] | None = None) -> str:
    """Runs a command; returns what it printed.

    Raises:
        FailedProgramError: it failed.
    """
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise FailedProgramError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def run_training(module: str, *arguments: str, log: Path | None = None) -> LoggedRun:
    """Runs `DLRM` or `BERT4REC` with flags; returns its log.

    Raises:
        FailedProgramError: it failed, or ended before all steps were measured or one profiled.
    """
    with tempfile.TemporaryDirectory() as temporary:
        path = log or Path(temporary) / "log.json"
        printed = run_module(module, *arguments, f"--log_path={path}")
        count = re.search(r"(\d+) parameters on", printed)
        run = dataclasses.replace(read_log(path), parameters=int(count[1]) if count else 0)
    asked = re.search(r"--benchmark_steps=(\d+)", " ".join(arguments))
    measured = run.final.get("benchmark_steps", 0)
    if asked and measured != int(asked[1]):
        raise FailedProgramError(f"{module} measured {measured:.0f} of {asked[1]} steps: too few")
    if "--run_profiler" in arguments and "profile_steps" not in run.final:
        raise FailedProgramError(f"{module} ended before a step was profiled")
    return run


def prepare_movielens(ratings: Path, output: Path) -> Path:
    """Prepares the dataset of ratings, unless it exists; returns its folder.

    Raises:
        UserError: the file is missing, or preprocessing failed.
    """
    if (output / "manifest.json").is_file():
        return output
    if not ratings.is_file():
        raise UserError(f"{ratings} is not there; RECSYS_DATA names the folder of real data")
    run_module("preproc.movielens", f"--input={ratings}", f"--output={output}", "--progress=none")
    return output
