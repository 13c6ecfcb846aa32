# SPDX-License-Identifier: Apache-2.0
"""Records of measurements, with settings and hardware, as JSON lines."""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from benchmark.machine import commit, hardware, versions

Direction = Literal["higher", "lower"]

RESULTS = Path(__file__).parent / "results"

_COMPARED = ("cpu", "cpu_kind", "cores", "gpu")
"""Hardware that is the same in comparable records; the clock and the memory may differ."""

_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A measured metric of one candidate.

    Attributes:
        benchmark: name of the benchmark and of its results file.
        candidate: measured implementation or case.
        metric: its name, such as `rows_per_s`.
        value: median of the repeats; None if all failed.
        p10: 10th percentile of the repeats.
        repeats: number of runs, failed ones included.
        config: settings that change the value (not paths).
        config_hash: hash of `config`; only equal ones are compared.
        hardware: CPU model and kind, cores, clock, memory, GPU.
        versions: package -> version, and that of Python.
        commit: git commit of the code, with `+` if files were modified.
        time: time of the measurement, UTC.
        samples: value of each successful run; empty in the oldest records.
        seeds: seed of each successful run; empty if runs have no seeds.
        threshold: largest change that does not count: `5%` of the value, or `0.002` in its unit.
        reason: why a base metric was accepted.
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
    samples: list[float]
    seeds: list[int]
    threshold: str
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuses values that contradict each other.

        Raises:
            ValueError: names the field.
        """
        if self.direction not in get_args(Direction):
            raise ValueError(f"direction {self.direction!r} must be higher or lower")
        if not 0 <= self.failed <= self.repeats:
            raise ValueError(f"failed {self.failed} of {self.repeats} repeats")
        percentiles = (self.p10, self.value, self.p90)
        if any(p is None for p in percentiles) != (self.failed == self.repeats):
            raise ValueError(f"value {self.value} with {self.failed} of {self.repeats} failed")
        if self.value is not None and not self.p10 <= self.value <= self.p90:  # type: ignore[operator]
            raise ValueError(f"value {self.value} lies outside p10 {self.p10} and p90 {self.p90}")
        parse_threshold(self.threshold)
        if self.samples and len(self.samples) != self.repeats - self.failed:
            raise ValueError(f"{len(self.samples)} samples of {self.repeats} repeats")

    @property
    def cpu_kind(self) -> str:
        """Kind of the CPU; `unknown` in old records."""
        return str(self.hardware.get("cpu_kind", "unknown"))

    @property
    def machine(self) -> str:
        """Hardware that is equal in comparable records, as text."""
        return json.dumps({name: self.hardware.get(name) for name in _COMPARED})

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Fields that are equal in comparable records."""
        return self.benchmark, self.candidate, self.metric, self.config_hash, self.machine

    @property
    def ignored_change(self) -> float:
        """The threshold in the unit of the value."""
        number, is_relative = parse_threshold(self.threshold)
        return number * abs(self.value or 0.0) if is_relative else number

    @property
    def spread(self) -> float:
        """Uncertainty of the value, in its unit; 0 for a single run.

        Half the range from the 10th to the 90th percentile of bootstrapped medians of `samples`; in
        records without samples, of the runs themselves.
        """
        if len(self.samples) > 1:
            return spread_of_median(self.samples)
        if self.p10 is None or self.p90 is None:
            return 0.0
        return (self.p90 - self.p10) / 2


def spread_of_median(samples: Sequence[float]) -> float:
    """Returns half the 10th-to-90th percentile range of bootstrapped medians."""
    values = np.asarray(samples, np.float64)
    drawn = np.random.default_rng(0).integers(0, len(values), (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[drawn], axis=1), (10, 90))
    return float(high - low) / 2


def parse_threshold(text: str) -> tuple[float, bool]:
    """Parses `5%` to (0.05, True) and `0.002` to (0.002, False).

    Raises:
        ValueError: the text is neither.
    """
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"threshold {text!r} must be a number such as 0.002 or a share such as 5%")
    return (number / 100, True) if text.endswith("%") else (number, False)


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
    seeds: Sequence[int] = (),
    threshold: str = "5%",
) -> Record:
    """Makes a record of the successful repeats, with this machine and time."""
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
        config_hash=config_hash(settings),
        hardware=hardware(),
        versions=versions(),
        commit=commit(),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        samples=[float(sample) for sample in samples],
        seeds=list(seeds),
        threshold=threshold,
    )


def config_hash(config: Mapping[str, Any]) -> str:
    """Returns twelve hexadecimal digits that identify settings."""
    return hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode()).hexdigest()[:12]


def json_line(record: Record) -> str:
    """Returns the line of a record in a JSON-lines file."""
    return json.dumps(dataclasses.asdict(record)) + "\n"


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Appends records to a JSON-lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(map(json_line, records))


def read_records(path: Path) -> list[Record]:
    """Reads a JSON-lines file.

    Raises:
        ValueError: the file is missing or a line is not a valid record.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such results file; run its benchmark first")
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            records.append(Record(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: not a valid record: {error}") from error
    return records


def latest(records: Iterable[Record]) -> list[Record]:
    """Returns the last record of each key, in order of first appearance."""
    return list({record.key: record for record in records}.values())
