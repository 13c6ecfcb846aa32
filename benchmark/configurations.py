# SPDX-License-Identifier: Apache-2.0
"""Configurations of benchmarks: commands, and what is measured of them.

A YAML file is a configuration; its name is the benchmark's. Commands are those of the documents,
with placeholders: `{data}` a folder that `prepare` fills once, `{run}` a folder of each run,
`{seed}`, and `{recsys_data}`, the folder of real logs. `python` is the one that runs this; commands
in the environment of a peer begin with `.venv-peers/bin/python` and the like.
"""

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from benchmark.record import Direction, config_hash, parse_threshold

Source = Literal["log", "process", "records"]

_PROCESS_KEYS = ("wall_s", "cpu_s", "peak_anon_mib")
_REPOSITORY = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric of a run.

    Attributes:
        source: `log`, the last value in {run}/log.json; `process`, the usage of the process;
            `records`, the values of {run}/*.jsonl, which a benchmark with peers wrote.
        key: name there; of records `CANDIDATE / METRIC`.
        unit: unit of the value.
        direction: whether higher or lower is better.
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
class Configuration:
    """A benchmark.

    Attributes:
        name: name of the benchmark.
        description: what is measured, in a sentence.
        run: command that is measured.
        metrics: name -> metric.
        prepare: commands that fill {data} before the first run.
        processes: processes of the command, started by torchrun if more than one.
        timeout_s: seconds after which a run has failed.
        requires: files without which the benchmark is left out; relative to the repository.
    """

    name: str
    description: str
    run: str
    metrics: Mapping[str, Metric]
    prepare: tuple[str, ...] = ()
    processes: int = 1
    timeout_s: float = 1800.0
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a configuration that measures nothing."""
        if not self.metrics:
            raise ValueError("metrics: there is none")
        if self.processes < 1:
            raise ValueError(f"processes {self.processes}: at least 1")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s {self.timeout_s}: must be positive")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that change the values: commands and processes."""
        return {"run": self.run, "prepare": list(self.prepare), "processes": self.processes}

    @property
    def data_folder(self) -> str:
        """Name of the folder that `prepare` fills; another for other commands."""
        return f"{self.name}-{config_hash({'prepare': list(self.prepare)})}"

    def missing(self) -> list[str]:
        """Returns the required files that are not there."""
        files = [_filled(text, {"recsys_data": str(recsys_data())}) for text in self.requires]
        return [file for file in files if not (_REPOSITORY / file).exists()]

    def command(self, text: str, data: Path, run: Path | None = None, seed: int = 0) -> list[str]:
        """Returns a command with its placeholders filled.

        Args:
            text: one of `prepare`, or `run`.
            data: folder that `prepare` fills.
            run: folder of the run.
            seed: seed of the run.
        """
        values = {"data": str(data), "run": str(run), "seed": str(seed)}
        values["recsys_data"] = str(recsys_data())
        words = [_filled(word, values) for word in shlex.split(text)]
        launcher = [sys.executable]
        if self.processes > 1 and text == self.run:
            launcher += ["-m", "torch.distributed.run", "--standalone"]
            launcher += [f"--nproc_per_node={self.processes}"]
        if words[0].startswith(".venv"):  # another checkout needs no environments of its own
            return [str(_REPOSITORY / words[0]), *words[1:]]
        return [*launcher, *words[1:]] if words[0] == "python" else words


def recsys_data() -> Path:
    """Returns the folder of real logs: $RECSYS_DATA, else ../shared/data."""
    return Path(os.environ.get("RECSYS_DATA", _REPOSITORY.parent / "shared" / "data"))


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def read_configuration(path: Path) -> Configuration:
    """Reads a YAML file.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    try:
        content = yaml.safe_load(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("not a mapping of settings")
        metrics = content.pop("metrics", None) or {}
        for name in ("prepare", "requires"):
            if name in content:
                content[name] = tuple(content[name])
        return Configuration(
            name=path.stem,
            metrics={name: Metric(**values) for name, values in metrics.items()},
            **content,
        )
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: not a configuration: {error}") from error


def read_configurations(path: Path) -> list[Configuration]:
    """Reads a file, or all of a folder by name.

    Raises:
        ValueError: there is none, or one is wrong.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: no configuration (*.yaml) in this folder")
    return [read_configuration(file) for file in files]
