# SPDX-License-Identifier: Apache-2.0
"""Runs BERT4Rec's program in a process and reads its log."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from recsys.train.run_log import read_run_log


@dataclasses.dataclass(frozen=True, slots=True)
class LoggedRun:
    """Records of a run's log.

    Attributes:
        evaluations: metrics of each evaluation, with `epoch`, `step` and `elapsed_s`, the seconds
            of all runs up to it, resumed ones included.
        losses: step -> mean training loss since the last print.
        final: metrics of the test and throughput, and of --run_benchmark.
        parameters: number of parameters that the program printed; 0 if read from a log alone.
    """

    evaluations: list[dict[str, float]]
    losses: dict[int, float]
    final: dict[str, float]
    parameters: int = 0


def read_log(path: Path) -> LoggedRun:
    """Reads the log of a run, resumed or not."""
    evaluations: list[dict[str, float]] = []
    losses: dict[int, float] = {}
    final: dict[str, float] = {}
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
        elif "loss" in data:
            losses[step[1]] = data["loss"]
        else:
            evaluations.append(
                {"epoch": step[0], "step": step[1], "elapsed_s": before + elapsed} | data
            )
    return LoggedRun(evaluations, losses, final)


def run_bert4rec(log: Path, *arguments: str) -> LoggedRun:
    """Runs bert4rec.scripts.main in a process of its own and reads its log.

    Raises:
        RuntimeError: the program failed; the message ends with its error output.
    """
    command = [sys.executable, "-m", "bert4rec.scripts.main", *arguments, f"--log_path={log}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    printed = re.search(r"(\d+) parameters on", done.stdout)
    assert printed is not None, done.stdout
    return dataclasses.replace(read_log(log), parameters=int(printed[1]))


def prepare_movielens(ratings: Path, output: Path) -> Path:
    """Prepares the dataset of ratings, unless it exists; returns its folder.

    Raises:
        ValueError: the file of ratings is missing.
        RuntimeError: preprocessing failed.
    """
    if (output / "manifest.json").is_file():
        return output
    if not ratings.is_file():
        raise ValueError(f"{ratings} is not there; --data names the ratings file")
    command = [sys.executable, "-m", "preproc.movielens", f"--input={ratings}"]
    done = subprocess.run(
        [*command, f"--output={output}", "--progress=none"],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"preproc.movielens failed:\n{done.stderr[-2000:]}")
    return output


def rows(run: LoggedRun, keys: tuple[str, ...]) -> list[list[Any]]:
    """Returns [seconds, step, metrics...] of each evaluation."""
    return [[e["elapsed_s"], e["step"], *(e[key] for key in keys)] for e in run.evaluations]
