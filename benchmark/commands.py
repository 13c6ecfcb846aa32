# SPDX-License-Identifier: Apache-2.0
"""Cases that are commands, each in a YAML file.

Its name is the benchmark's. Commands are those of the documents, with placeholders: `{data}` a
folder that `prepare` fills once, `{run}` a folder of each run, `{seed}`, and `{recsys_data}`, the
folder of real logs. `python` is the one that runs this; commands in an environment of their own
begin with `.venv-triton/bin/python` and the like.
"""

import dataclasses
import functools
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from benchmark.case import Case, Group, Key, Values
from benchmark.processes import run_process
from benchmark.programs import read_figures
from benchmark.record import Direction, config_hash, parse_threshold
from recsys.errors import UserError
from recsys.files.durable import whole_file

Source = Literal["log", "process"]

HERE = Path(__file__).resolve().parents[1]
OURS, OLD = "ours", "old"
"""Rows of the values of this checkout, and of the one beside it."""

_PROCESS_KEYS = ("wall_s", "cpu_s", "peak_anon_mib")
_PREPARED = "prepared"


class FailedRunError(UserError):
    """A command that failed or did not report a metric."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecordedMetric:
    """A metric of a run.

    Attributes:
        source: `log`, the last value in {run}/log.json; `process`, the usage of the process.
        key: name there.
        threshold: change that does not count, `3%` or `0.002`.
    """

    source: Source
    key: str
    unit: str = ""
    direction: Direction
    threshold: str = "5%"

    def __post_init__(self) -> None:
        """Refuses values that mean nothing."""
        if self.source not in get_args(Source):
            raise ValueError(f"source {self.source!r} is none of {', '.join(get_args(Source))}")
        if self.source == "process" and self.key not in _PROCESS_KEYS:
            raise ValueError(f"key {self.key!r} of a process is none of {', '.join(_PROCESS_KEYS)}")
        if self.direction not in get_args(Direction):
            raise ValueError(f"direction {self.direction!r} is neither higher nor lower")
        parse_threshold(self.threshold)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CommandCase(Case):
    """A benchmark of one command, in this checkout and perhaps another.

    Attributes:
        prepare: commands that fill {data} before the first run.
        processes: processes of the command, started by torchrun if more than one.
        timeout_s: seconds after which a run has failed.
        requires: files without which the benchmark is left out; relative to the repository.
        beside: another checkout, to run the command in turns.
    """

    title: str
    description: str
    run: str
    metrics: Mapping[str, RecordedMetric]
    prepare: tuple[str, ...] = ()
    processes: int = 1
    timeout_s: float = 1800.0
    requires: tuple[str, ...] = ()
    beside: Path | None = None

    def __post_init__(self) -> None:
        """Refuses a case that measures nothing."""
        if not self.metrics:
            raise ValueError("metrics: there is none")
        if self.processes < 1:
            raise ValueError(f"processes {self.processes}: at least 1")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s {self.timeout_s}: must be positive")

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.title

    @property
    def seeded(self) -> bool:
        """Whether the command gets a seed."""
        return "{seed}" in self.run

    def config(self) -> dict[str, Any]:
        """Returns the commands and the number of processes."""
        return {"run": self.run, "prepare": list(self.prepare), "processes": self.processes}

    def judge(self, key: Key) -> tuple[Direction, str]:
        """Returns direction and threshold of a metric."""
        metric = self.metrics[key.metric]
        return metric.direction, metric.threshold

    def missing(self) -> list[str]:
        """Returns the required files that are not there."""
        files = [_filled(text, {"recsys_data": str(recsys_data())}) for text in self.requires]
        return [file for file in files if not (HERE / file).exists()]

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the command in this checkout and in the other one."""
        data = self._prepare(folder)
        checkouts = {OURS: HERE} | ({OLD: self.beside} if self.beside else {})

        def measure(row: str, seed: int) -> Values:
            name = "new" if row == OURS else row
            run = folder / self.name / f"{name}-{seed}"
            try:
                values = self._run_once(data, run, seed, checkouts[row])
            except FailedRunError as error:
                print(f"{self.name} {name}, seed {seed}: failed, {error}", flush=True)
                values = dict.fromkeys(self.metrics, math.nan)
            return {Key(row, name, self.metrics[name].unit): v for name, v in values.items()}

        yield Group(candidates={row: functools.partial(measure, row) for row in checkouts})

    def _prepare(self, folder: Path) -> Path:
        """Fills the data folder, unless it is; another one for other commands."""
        data = folder / "data" / f"{self.name}-{config_hash({'prepare': list(self.prepare)})}"
        if (data / _PREPARED).is_file():
            return data
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(parents=True)
        for text in self.prepare:
            print(f"{self.name}: {text}", flush=True)
            usage = run_process(self.command(text, data), folder=HERE)
            if usage.exit_status:
                status = usage.exit_status
                raise FailedRunError(f"{self.name}: `{text}` ended with {status}:\n{usage.output}")
        with whole_file(data / _PREPARED) as file:
            file.write("\n".join(self.prepare).encode())
        return data

    def _run_once(self, data: Path, run: Path, seed: int, checkout: Path) -> dict[str, float]:
        """Runs the command; returns its metrics."""
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        command = self.command(self.run, data, run, seed)
        usage = run_process(command, folder=checkout, timeout_s=self.timeout_s)
        (run / "output.txt").write_text(usage.output)
        if usage.exit_status:
            last = usage.output.strip().splitlines()[-1:] or ["no output"]
            raise FailedRunError(f"exit status {usage.exit_status}: {last[0]}")
        log = run / "log.json"
        logged = read_figures(log) if log.is_file() else {}
        values = {"process": dataclasses.asdict(usage), "log": logged}
        numbers = {}
        for name, metric in self.metrics.items():
            number = values[metric.source].get(metric.key)
            if not isinstance(number, int | float):
                raise FailedRunError(f"{name}: no number {metric.key!r} in {metric.source}")
            numbers[name] = float(number)
        return numbers

    def command(self, text: str, data: Path, run: Path | None = None, seed: int = 0) -> list[str]:
        """Returns a command, one of `prepare` or `run`, with its placeholders filled."""
        values = {"data": str(data), "run": str(run), "seed": str(seed)}
        values["recsys_data"] = str(recsys_data())
        words = [_filled(word, values) for word in shlex.split(text)]
        launcher = [sys.executable]
        if self.processes > 1 and text == self.run:
            launcher += ["-m", "torch.distributed.run", "--standalone"]
            launcher += [f"--nproc_per_node={self.processes}"]
        if words[0].startswith(".venv"):  # another checkout needs no environments of its own
            return [str(HERE / words[0]), *words[1:]]
        return [*launcher, *words[1:]] if words[0] == "python" else words


def recsys_data() -> Path:
    """Returns the folder of real logs: $RECSYS_DATA, else ../shared/data."""
    return Path(os.environ.get("RECSYS_DATA", HERE.parent / "shared" / "data"))


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def read_command_case(path: Path, beside: Path | None = None) -> CommandCase:
    """Reads a YAML file.

    Raises:
        UserError: names the file and what is wrong with it.
    """
    try:
        content = yaml.safe_load(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("not a mapping of settings")
        if base := content.pop("base", None):
            content = yaml.safe_load((path.parent / base).read_text()) | content
            content["run"] += f" {content.pop('flags')}"
        metrics = content.pop("metrics", None) or {}
        for name in ("prepare", "requires"):
            if name in content:
                content[name] = tuple(content[name])
        return CommandCase(
            title=path.stem,
            metrics={name: RecordedMetric(**values) for name, values in metrics.items()},
            beside=beside,
            **content,
        )
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not a case: {error}", path=path) from error
