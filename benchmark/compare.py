# SPDX-License-Identifier: Apache-2.0
"""Compares results with base metrics, or with other results.

    python -m benchmark.compare runs/records.jsonl
    python -m benchmark.compare new.jsonl --against old.jsonl --threshold 3%
    python -m benchmark.compare new.jsonl --update --reason "fused loss"

A change counts if it exceeds both the threshold of the metric and the noise of the two values.
Exits 1 if a metric is worse, 2 if nothing could be compared. `--update` stores the new results as
base metrics, with the reason.
"""

import dataclasses
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from benchmark.door import start
from benchmark.record import (
    Record,
    json_line,
    latest,
    parse_threshold,
    read_records,
    spread_of_median,
)
from recsys.errors import FAILED, UserError
from recsys.files.durable import whole_file
from recsys.settings import setting

Verdict = Literal["better", "worse", "balanced", "unreliable"]

BASE_METRICS = Path(__file__).parent / "base_metrics"

_COLORS: dict[Verdict, str] = {"better": "32", "worse": "31", "unreliable": "33", "balanced": "0"}


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A new record compared with an old one.

    Attributes:
        change: new minus old in their unit, positive is better; None if a value is missing.
        ignored: largest change that counts as noise.
        verdict: `unreliable` if more than half of the repeats of a record failed.
    """

    new: Record
    old: Record
    change: float | None
    ignored: float
    verdict: Verdict

    @property
    def is_noisy(self) -> bool:
        """Whether noise hides changes as large as the threshold."""
        return self.ignored > self.old.ignored_change

    @property
    def relative(self) -> tuple[str, str]:
        """The change and the noise, as a table shows them."""
        if self.change is None:
            return "failed", ""
        return _relative(self, self.change, sign=True), _relative(self, self.ignored)


def compare_records(new: Record, old: Record) -> Comparison:
    """Compares two records that were measured at different times."""
    if _fails(new, old) or new.value is None or old.value is None:
        return Comparison(new, old, None, math.inf, "unreliable")
    return _judge(new, old, new.value - old.value, 2 * math.hypot(new.spread, old.spread))


def compare_runs(new: Record, old: Record, pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Compares records by (new, old) pairs of runs, so that drift cancels."""
    if _fails(new, old) or not pairs:
        return Comparison(new, old, None, math.inf, "unreliable")
    changes = [mine - other for mine, other in pairs]
    noise = max(2 * spread_of_median(changes), _half_interval(changes))
    return _judge(new, old, statistics.median(changes), noise)


def _half_interval(changes: Sequence[float]) -> float:
    """Returns half of Student's 99.9% confidence interval; 0 for a single change.

    A few pairs that happen to lie close together have a small spread. Judged only by the spread,
    unchanged code once seemed 12.6% better, from five pairs on a busy machine.
    """
    if len(changes) < 2:
        return 0.0
    from scipy.stats import t as student  # from the extra `benchmark`; `--beside` checks for it

    quantile = float(student.ppf(0.9995, len(changes) - 1))
    return quantile * statistics.stdev(changes) / math.sqrt(len(changes))


def _fails(*records: Record) -> bool:
    return any(2 * record.failed > record.repeats for record in records)


def _judge(new: Record, old: Record, change: float, noise: float) -> Comparison:
    ignored = max(old.ignored_change, noise)
    if new.direction == "lower":
        change = -change
    verdict: Verdict = "balanced"
    if abs(change) > ignored:
        verdict = "better" if change > 0 else "worse"
    return Comparison(new, old, change, ignored, verdict)


def compare(new: Iterable[Record], old: Iterable[Record]) -> list[Comparison]:
    """Compares records of equal benchmark, candidate, metric, settings and hardware."""
    known = {record.key: record for record in old}
    return [
        compare_records(record, known[record.key]) for record in latest(new) if record.key in known
    ]


def read_base_metrics(folder: Path, kind: str) -> tuple[Path, list[Record]]:
    """Returns the file of a kind of CPU, such as avx-512-bf16.jsonl, and its records.

    Raises:
        ValueError: a line is not a valid record.
    """
    path = folder / (re.sub(r"[^a-z0-9]+", "-", kind.lower()) + ".jsonl")
    return path, read_records(path) if path.is_file() else []


def update_base_metrics(records: Iterable[Record], reason: str, folder: Path) -> list[Path]:
    """Replaces the base metrics that have the same keys; returns the files.

    Raises:
        ValueError: the kind of CPU of a record is unknown, or most of its runs failed.
    """
    by_kind: dict[str, list[Record]] = {}
    for record in latest(records):
        if record.cpu_kind == "unknown" or _fails(record):
            name = f"{record.benchmark} {record.metric}"
            why = "most runs failed" if _fails(record) else "the kind of CPU is not known"
            raise ValueError(f"{name}: {why}, so this record cannot become a base metric")
        changed = dataclasses.replace(record, reason=reason)
        by_kind.setdefault(record.cpu_kind, []).append(changed)
    paths = []
    for kind, changed_ones in by_kind.items():
        path, old = read_base_metrics(folder, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            for record in sorted(latest([*old, *changed_ones]), key=lambda record: record.key):
                file.write(json_line(record).encode())
        paths.append(path)
    return paths


def format_comparisons(comparisons: Sequence[Comparison], *, color: bool) -> str:
    """Formats a table of verdicts, values and changes."""
    rows = [("verdict", "metric", "old", "new", "change", "noise")]
    for c in comparisons:
        name = f"{c.new.benchmark} {c.new.candidate} {c.new.metric}"
        rows.append((c.verdict, name, _cell(c.old), _cell(c.new), *c.relative))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    if color:
        for number, c in enumerate(comparisons, 1):
            lines[number] = f"\033[{_COLORS[c.verdict]}m{lines[number]}\033[0m"
    return "\n".join(line.rstrip() for line in lines)


def _cell(record: Record) -> str:
    return "failed" if record.value is None else f"{record.value:.6g} {record.unit}".rstrip()


def _relative(comparison: Comparison, amount: float, *, sign: bool = False) -> str:
    _, is_relative = parse_threshold(comparison.old.threshold)
    form = "+" if sign else ""
    if is_relative and comparison.old.value:
        return f"{amount / abs(comparison.old.value):{form}.1%}"
    return f"{amount:{form}.4g}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CompareSettings:
    """Settings of this program."""

    against: Path | None = setting(None, "Old results to compare with; default: the base metrics")
    base_metrics: Path = setting(
        BASE_METRICS, "Folder of the base metrics", default_text="benchmark/base_metrics"
    )
    threshold: str | None = setting(
        None, "Threshold of all metrics, such as 3% or 0.002: smaller changes do not count"
    )
    update: bool = setting(False, "Store the results as base metrics")
    reason: str | None = setting(None, "Why the base metrics change, for --update")
    color: Literal["auto", "always", "never"] = setting("auto", "When to colour the verdicts")


SECTIONS = {CompareSettings: "options"}


def run(settings: CompareSettings, files: list[str]) -> int:
    """Compares or updates; returns the exit status."""
    if len(files) != 1:
        raise UserError("name exactly one file of results (.jsonl)")
    if settings.update and not settings.reason:
        raise UserError(
            "`update` needs `reason`: why the base metrics change", settings=("update", "reason")
        )
    try:
        new = read_records(Path(files[0]))
        if settings.update:
            for path in update_base_metrics(new, settings.reason or "", settings.base_metrics):
                print(f"{path}: updated")
            return 0
        if settings.against:
            old = read_records(settings.against)
        else:
            kinds = {record.cpu_kind for record in new}
            old = [r for kind in kinds for r in read_base_metrics(settings.base_metrics, kind)[1]]
        if settings.threshold is not None:
            old = [dataclasses.replace(record, threshold=settings.threshold) for record in old]
    except ValueError as error:
        raise UserError(str(error)) from error
    comparisons = compare(new, old)
    if not comparisons:
        raise UserError(
            "nothing to compare: no old record has the settings and hardware of a new one"
        )
    color = settings.color == "always" or (settings.color == "auto" and sys.stdout.isatty())
    print(format_comparisons(comparisons, color=color))
    return FAILED if any(c.verdict == "worse" for c in comparisons) else 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start(SECTIONS, run, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
