# SPDX-License-Identifier: Apache-2.0
"""Compares new results with old ones, or with the accepted baselines.

    python -m benchmark.compare benchmark/results/preprocessing.jsonl
    python -m benchmark.compare new.jsonl --against old.jsonl --threshold 0.05
    python -m benchmark.compare new.jsonl --accept

Exits 1 if a metric is worse, 2 if nothing could be compared. `--accept` writes the new results
into the baselines.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchmark.record import Record, latest, read_records

Verdict = Literal["better", "worse", "balanced", "unreliable"]

BASELINES = Path(__file__).parent / "baselines.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A new record compared with an old one.

    Attributes:
        new: the new record.
        old: the old record.
        change: relative change, positive is better; None if a value is missing.
        threshold: largest relative change that counts as noise.
        verdict: `unreliable` if more than half of the repeats of a record failed.
    """

    new: Record
    old: Record
    change: float | None
    threshold: float
    verdict: Verdict


def compare_records(new: Record, old: Record, threshold: float) -> Comparison:
    """Compares two records; noise is `threshold` or twice their spread."""
    limit = max(threshold, 2 * new.spread, 2 * old.spread)
    failing = any(2 * r.failed > r.repeats for r in (new, old))
    if failing or new.value is None or old.value is None:
        return Comparison(new, old, None, limit, "unreliable")
    change = (new.value - old.value) / abs(old.value) if old.value else float(new.value != 0)
    if new.direction == "lower":
        change = -change
    verdict: Verdict = "balanced"
    if abs(change) > limit:
        verdict = "better" if change > 0 else "worse"
    return Comparison(new, old, change, limit, verdict)


def compare(new: list[Record], old: list[Record], threshold: float) -> list[Comparison]:
    """Compares records of equal benchmark, candidate, metric, settings, hardware."""
    known = {record.key: record for record in old}
    return [
        compare_records(record, known[record.key], threshold)
        for record in latest(new)
        if record.key in known
    ]


def read_baselines(path: Path) -> list[Record]:
    """Reads the accepted records."""
    return [Record(**entry) for entry in json.loads(path.read_text())] if path.is_file() else []


def accept(new: list[Record], path: Path) -> None:
    """Replaces the accepted records of the same keys."""
    merged = latest([*read_baselines(path), *new])
    text = json.dumps([dataclasses.asdict(record) for record in merged], indent=1) + "\n"
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def format_comparison(comparison: Comparison) -> str:
    """Formats a comparison as a line."""
    new, old, change = comparison.new, comparison.old, comparison.change
    shown = "failed" if change is None else f"{change:+.1%} (noise {comparison.threshold:.1%})"
    name = f"{new.benchmark} {new.candidate} {new.metric}"
    return f"{comparison.verdict:<10} {name}: {old.value} -> {new.value} {new.unit}, {shown}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compares or accepts results; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="new results (.jsonl)")
    parser.add_argument("--against", type=Path, help="old results; the baselines by default")
    parser.add_argument("--baselines", type=Path, default=BASELINES, help="the accepted results")
    parser.add_argument("--threshold", type=float, default=0.05, help="changes up to it are noise")
    parser.add_argument("--accept", action="store_true", help="make the new results the baselines")
    arguments = parser.parse_args(argv)
    try:
        new = read_records(arguments.results)
        old = (
            read_records(arguments.against)
            if arguments.against
            else read_baselines(arguments.baselines)
        )
    except ValueError as error:
        print(f"benchmark.compare: {error}", file=sys.stderr)
        return 2
    if arguments.accept:
        accept(new, arguments.baselines)
        return 0
    comparisons = compare(new, old, arguments.threshold)
    for comparison in comparisons:
        print(format_comparison(comparison))
    if not comparisons:
        print("nothing to compare: no record has equal settings and hardware", file=sys.stderr)
        return 2
    return int(any(c.verdict == "worse" for c in comparisons))


if __name__ == "__main__":
    sys.exit(main())
