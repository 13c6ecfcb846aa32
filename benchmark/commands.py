# SPDX-License-Identifier: Apache-2.0
"""Cases that run a command, each described in a YAML file.

The name of the file is the name of the benchmark. Commands are written as in the documents, with
placeholders: `{data}`, a folder that `prepare` fills once; `{run}`, a folder for each run;
`{seed}`; and `{recsys_data}`, the folder of real logs. `python` is the interpreter that runs this
program; commands for another environment begin with a path such as `.venv-triton/bin/python`.
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
"""Rows for the values of this checkout and of the other one."""

_PROCESS_KEYS = ("wall_s", "cpu_s", "peak_anon_mib")
_PREPARED = "prepared"


class FailedRunError(UserError):
    """A command that failed or did not report a metric."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecordedMetric:
    """A metric of a run.

    Attributes:
        source: `log` for the last value in {run}/log.json, `process` for the resources that the
            process used.
        key: name of the value in the source.
        threshold: largest change that does not count, such as `3%` or `0.002`.
    """

    source: Source
    key: str
    unit: str = ""
    direction: Direction
    threshold: str = "5%"

    def __post_init__(self) -> None:
        """Refuses invalid values."""
        if self.source not in get_args(Source):
            raise ValueError(f"source {self.source!r} must be one of {', '.join(get_args(Source))}")
        if self.source == "process" and self.key not in _PROCESS_KEYS:
            raise ValueError(f"key {self.key!r} must be one of {', '.join(_PROCESS_KEYS)}")
        if self.direction not in get_args(Direction):
            raise ValueError(f"direction {self.direction!r} must be higher or lower")
        parse_threshold(self.threshold)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CommandCase(Case):
    """A benchmark of one command, in this checkout and optionally in another.

    Attributes:
        prepare: commands that fill {data} before the first run.
        processes: number of processes; torchrun starts them if more than one.
        timeout_s: seconds after which a run is killed and counts as failed.
        requires: files without which the benchmark is left out; relative to the repository.
        beside: another checkout in which the command runs too, in turns; None for this one only.
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
        """Refuses invalid settings."""
        if not self.metrics:
            raise ValueError("metrics must name at least one metric")
        if self.processes < 1:
            raise ValueError(f"processes {self.processes}: must be at least 1")
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
        """Returns the required files that do not exist."""
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
        """Fills the data folder unless that is done; other commands have another folder."""
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
                raise FailedRunError(
                    f"{self.name}: `{text}` failed with exit status {status}:\n{usage.output}"
                )
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
        raise UserError(f"{path}: not a valid case: {error}", path=path) from error
