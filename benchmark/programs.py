# SPDX-License-Identifier: Apache-2.0
"""Runs the project's programs in processes and reads their logs."""

import functools
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmark.case import Group, Key, Values
from recsys.errors import UserError
from recsys.train.run_log import read_run_log

DLRM, BERT4REC = "dlrm.scripts.main", "bert4rec.scripts.main"


class FailedProgramError(UserError):
    """A program that failed; the message ends with its error output."""


class Figure(NamedTuple):
    """The value to record for a number of a program's log: that number times `factor`."""

    metric: str
    unit: str = ""
    factor: float = 1.0
    row: str = ""
    """Added to the name of the row if a run measures several rows."""


STEP_FIGURES = {
    "benchmark_samples_per_s": Figure("throughput", "samples/s"),
    "benchmark_tokens_per_s": Figure("tokens", "tokens/s"),
    "benchmark_targets_per_s": Figure("targets", "targets/s"),
    "benchmark_step_time_p50": Figure("step time p50", "ms", 1e3),
    "benchmark_step_time_p90": Figure("step time p90", "ms", 1e3),
    "benchmark_peak_memory_bytes": Figure("peak memory", "MiB", 2**-20),
}
"""Figures that --run_benchmark logs; only BERT4Rec logs tokens and targets."""


def read_figures(log: Path) -> dict[str, Any]:
    """Returns the last value of each name in a log, without settings."""
    figures: dict[str, Any] = {}
    for entry in read_run_log(log):
        if entry["step"] != "PARAMETER":
            figures |= entry["data"]
    return figures


def run_module(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Runs a module in a process and returns its standard output, like `run_command`."""
    return run_command([sys.executable, "-m", module, *arguments], env)


def run_command(command: list[str], env: Mapping[str, str] | None = None) -> str:
    """Runs a command and returns its standard output.

    Raises:
        FailedProgramError: the command failed.
    """
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise FailedProgramError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def run_training(module: str, *arguments: str, log: Path | None = None) -> dict[str, Any]:
    """Runs `DLRM` or `BERT4REC` with flags; returns the figures of its log.

    They include `parameters`, the number of parameters, if the program prints it.

    Raises:
        FailedProgramError: the program failed, or ended before it had measured all steps or
            profiled one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        path = log or Path(temporary) / "log.json"
        printed = run_module(module, *arguments, f"--log_path={path}")
        figures = read_figures(path)
    if count := re.search(r"(\d+) parameters on", printed):
        figures["parameters"] = int(count[1])
    asked = re.search(r"--benchmark_steps=(\d+)", " ".join(arguments))
    measured = figures.get("benchmark_steps", 0)
    if asked and measured != int(asked[1]):
        raise FailedProgramError(f"{module} measured only {measured:.0f} of {asked[1]} steps")
    if "--run_profiler" in arguments and "profile_steps" not in figures:
        raise FailedProgramError(f"{module} ended before a step was profiled")
    return figures


def training_group(
    module: str,
    rows: Mapping[str, Sequence[str]],
    figures: Mapping[str, Figure],
    log: Path | None = None,
) -> Group:
    """Makes a candidate of each row: a program with its flags.

    Args:
        module: `DLRM` or `BERT4REC`.
        rows: name -> flags.
        figures: name in the log -> value to record; the log must have all of them.
        log: file for the log, next to which a profile is kept; None keeps neither.
    """

    def measure(row: str, _seed: int) -> Values:
        logged = run_training(module, *rows[row], log=log)
        return {
            Key(row + figure.row, figure.metric, figure.unit): logged[name] * figure.factor
            for name, figure in figures.items()
        }

    return Group(candidates={row: functools.partial(measure, row) for row in rows})


def prepare_movielens(ratings: Path, output: Path) -> Path:
    """Prepares the dataset of ratings, unless it exists; returns its folder.

    Raises:
        UserError: the file is missing, or preprocessing failed.
    """
    if (output / "manifest.json").is_file():
        return output
    if not ratings.is_file():
        raise UserError(f"{ratings} does not exist; set RECSYS_DATA to the folder of real data")
    run_module("preproc.movielens", f"--input={ratings}", f"--output={output}", "--progress=none")
    return output
