# SPDX-License-Identifier: Apache-2.0
"""Records of measurements, with settings and hardware, as JSON lines."""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recsys.resources import available_cores

Direction = Literal["higher", "lower"]

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "numpy",
    "torch",
    "pyarrow",
    "polars",
    "duckdb",
    "scikit-learn",
    "fbgemm-gpu-cpu",
    "torchrec",
    "merlin-dataloader",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A measured metric of one candidate.

    Attributes:
        benchmark: name of the benchmark and of its results file.
        candidate: name of the measured implementation or case.
        metric: name of the metric, such as `rows_per_s`.
        value: median of the repeats; None if all failed.
        unit: unit of the value.
        direction: whether higher or lower is better.
        p10: 10th percentile of the repeats.
        p90: 90th percentile of the repeats.
        repeats: number of runs, failed ones included.
        failed: number of failed runs.
        config: settings that change the value (not paths).
        config_hash: hash of `config`; only equal ones are compared.
        hardware: CPU model, cores, memory, GPU; only equal ones are compared.
        versions: package -> version, and that of Python.
        commit: git commit of the code, with `+` if files were modified.
        time: time of the measurement, UTC.
    """

    benchmark: str
    candidate: str
    metric: str
    value: float | None
    unit: str
    direction: Direction
    p10: float | None
    p90: float | None
    repeats: int
    failed: int
    config: dict[str, Any]
    config_hash: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    commit: str
    time: str

    @property
    def p50(self) -> float | None:
        """Median of the repeats, the same as `value`."""
        return self.value

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Fields that are equal in comparable records."""
        hardware = json.dumps(self.hardware, sort_keys=True)
        return self.benchmark, self.candidate, self.metric, self.config_hash, hardware

    @property
    def spread(self) -> float:
        """Half the range from p10 to p90, relative to the value."""
        if not self.value or self.p10 is None or self.p90 is None:
            return 0.0
        return (self.p90 - self.p10) / 2 / abs(self.value)


def make_record(
    benchmark: str,
    candidate: str,
    metric: str,
    samples: Sequence[float],
    *,
    unit: str,
    direction: Direction,
    config: Mapping[str, Any],
    failed: int = 0,
) -> Record:
    """Makes a record with this machine, code and time.

    Args:
        benchmark: name of the benchmark.
        candidate: measured implementation or case.
        metric: name of the metric.
        samples: value of each successful repeat.
        unit: unit of the values.
        direction: whether higher or lower is better.
        config: settings that change the values.
        failed: number of failed repeats.
    """
    p10, p50, p90 = np.percentile(samples, (10, 50, 90)).tolist() if samples else (None,) * 3
    settings = dict(config)
    return Record(
        benchmark=benchmark,
        candidate=candidate,
        metric=metric,
        value=p50,
        unit=unit,
        direction=direction,
        p10=p10,
        p90=p90,
        repeats=len(samples) + failed,
        failed=failed,
        config=settings,
        config_hash=hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12],
        hardware=hardware(),
        versions=versions(),
        commit=commit(),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Appends records to a JSON-lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for record in records:
            file.write(json.dumps(dataclasses.asdict(record)) + "\n")


def read_records(path: Path) -> list[Record]:
    """Reads a JSON-lines file.

    Raises:
        ValueError: the file is missing or a line is no record.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such results file; run its benchmark first")
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            records.append(Record(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: not a benchmark record: {error}") from error
    return records


def latest(records: Iterable[Record]) -> list[Record]:
    """Returns the last record of each key, in order of first appearance."""
    return list({record.key: record for record in records}.values())


def hardware() -> dict[str, Any]:
    """Returns CPU model, usable cores, memory in GiB and GPU name."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": available_cores(),
        "memory_gib": round(memory / 2**30),
        "gpu": _gpu(),
    }


def _gpu() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().replace("\n", ", ") or None if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Returns {name: version} of Python and the installed `PACKAGES`."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def commit() -> str:
    """Returns the commit of the checkout, with `+` if modified."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "") or "unknown"
    except OSError:
        return "unknown"
