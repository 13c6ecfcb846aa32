# SPDX-License-Identifier: Apache-2.0
"""Criteo preprocessing: our native engine beside Polars and DuckDB, the complete job.

    python -m benchmark.preprocessing --rows 4000000

Generates the logs once (four days), then runs the candidates in turns, each in a process of its
own: text -> counts over all days -> dictionary -> split binary. All must give the same bytes.
"""

import argparse
import dataclasses
import functools
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark.record import RESULTS, Direction, Record, make_record, write_records
from benchmark.run import Usage, run_interleaved, run_process
from dataspec.manifest import file_checksum
from preproc.generate_criteo import GeneratorConfig, generate

NAME = "preprocessing"
DAYS = 4
NUM_FILES = 84
CANDIDATES = ("native", "polars", "duckdb")
REPOSITORY = Path(__file__).parent.parent


class BenchmarkError(RuntimeError):
    """A candidate failed, or two of them disagree."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        rows: generated rows.
        repeats: runs of each candidate.
        threads: threads of each candidate.
        frequency_limit: rarer categories get id 0.
        candidates: who takes part; others are checked against the first.
    """

    rows: int
    repeats: int = 5
    threads: int = 2
    frequency_limit: int = 15
    candidates: tuple[str, ...] = CANDIDATES

    def command(self, candidate: str, raw: Path, output: Path) -> list[str]:
        """Returns the command of one run."""
        if candidate in ("native", "reference"):
            return [
                *(sys.executable, "-m", "preproc.criteo", f"--input={raw}", f"--output={output}"),
                *("--preset=dlrm", f"--frequency_limit={self.frequency_limit}"),
                *(f"--engine={candidate}", "--format=split", f"--threads={self.threads}"),
                "--progress=none",
            ]
        module = f"benchmark.peers.{candidate}_criteo"
        numbers = (str(self.threads), str(self.frequency_limit))
        return [sys.executable, "-m", module, str(raw), str(output), *numbers]


def dataset_checksums(root: Path) -> dict[str, str]:
    """Returns the checksum of every label, numerical and id file of a dataset."""
    return {
        path.relative_to(root).as_posix(): file_checksum(path)
        for split in ("train", "validation", "test")
        for path in sorted((root / split).glob("*.bin"))
    }


def measure(
    settings: Settings,
    raw: Path,
    work: Path,
    report: Callable[[str, int, Usage], None] = lambda *_: None,
) -> dict[str, list[Usage]]:
    """Runs all candidates in turns and checks each output.

    Args:
        settings: what to measure.
        raw: folder with the day files.
        work: folder for the outputs.
        report: called after each run.

    Raises:
        BenchmarkError: a run failed or gave other bytes than the first.
    """
    expected: dict[str, str] = {}

    def run(candidate: str) -> Usage:
        output = work / candidate
        usage = run_process(
            settings.command(candidate, raw, output), env={"PYTHONPATH": str(REPOSITORY)}
        )
        if usage.exit_status != 0:
            raise BenchmarkError(f"{candidate} ended with {usage.exit_status}:\n{usage.output}")
        checksums = dataset_checksums(output)
        shutil.rmtree(output)
        if len(checksums) != NUM_FILES:
            raise BenchmarkError(f"{candidate} wrote {len(checksums)} files, not {NUM_FILES}")
        if not expected:
            expected.update(checksums)
        differing = [name for name in expected if expected[name] != checksums.get(name)]
        if differing:
            raise BenchmarkError(
                f"{candidate} differs from {settings.candidates[0]} in {len(differing)} of "
                f"{NUM_FILES} files: {', '.join(differing[:5])}"
            )
        return usage

    runs = {name: functools.partial(run, name) for name in settings.candidates}
    return run_interleaved(runs, settings.repeats, report)


def make_records(
    settings: Settings, usages: dict[str, list[Usage]], raw_bytes: int
) -> list[Record]:
    """Returns the figures of all candidates; the others' time over the first one's is its lead."""
    config = {
        "rows": settings.rows,
        "days": DAYS,
        "threads": settings.threads,
        "frequency_limit": settings.frequency_limit,
    }
    records = []
    for candidate, runs in usages.items():
        figures: list[tuple[str, str, Direction, list[float]]] = [
            ("rows_per_s", "rows/s", "higher", [settings.rows / u.wall_s for u in runs]),
            ("input_mb_per_s", "MB/s", "higher", [raw_bytes / 1e6 / u.wall_s for u in runs]),
            ("cpu_us_per_row", "us", "lower", [u.cpu_s / settings.rows * 1e6 for u in runs]),
            ("peak_anonymous", "MiB", "lower", [u.peak_anon_mib for u in runs]),
        ]
        if candidate != settings.candidates[0]:
            # Runs of one round stand beside each other, so their ratio cancels most of the drift.
            pairs = zip(usages[settings.candidates[0]], runs, strict=True)
            lead = [theirs.wall_s / ours.wall_s for ours, theirs in pairs]
            figures.append((f"time_over_{settings.candidates[0]}", "x", "higher", lead))
        records += [
            make_record(
                NAME, candidate, metric, values, unit=unit, direction=direction, config=config
            )
            for metric, unit, direction, values in figures
        ]
    return records


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help="generated rows, four days")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each candidate")
    parser.add_argument("--threads", type=int, default=2, help="threads of each candidate")
    parser.add_argument("--frequency_limit", type=int, default=15, help="rarer ids become 0")
    parser.add_argument(
        "--candidates", default=",".join(CANDIDATES), help="the first is checked against"
    )
    parser.add_argument("--work_dir", type=Path, help="folder for inputs and outputs (temporary)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / f"{NAME}.jsonl", help="file to append records to"
    )
    arguments = parser.parse_args(argv)
    settings = Settings(
        rows=arguments.rows,
        repeats=arguments.repeats,
        threads=arguments.threads,
        frequency_limit=arguments.frequency_limit,
        candidates=tuple(arguments.candidates.split(",")),
    )

    def report(name: str, number: int, usage: Usage) -> None:
        print(
            f"round {number + 1} {name:<9} {settings.rows / usage.wall_s:>11,.0f} rows/s "
            f"{usage.cpu_s / settings.rows * 1e6:6.2f} us/row {usage.peak_anon_mib:7.0f} MiB",
            flush=True,
        )

    try:
        with tempfile.TemporaryDirectory(prefix="preprocessing_", dir=arguments.work_dir) as folder:
            raw = Path(folder) / "raw"
            generate(GeneratorConfig(output=raw, rows=settings.rows, days=DAYS), progress=True)
            raw_bytes = sum(path.stat().st_size for path in raw.glob("day_*"))
            usages = measure(settings, raw, Path(folder), report)
    except (BenchmarkError, ValueError) as error:
        print(f"benchmark.preprocessing: {error}", file=sys.stderr)
        return 1
    records = make_records(settings, usages, raw_bytes)
    write_records(arguments.results, records)
    for metric in dict.fromkeys(record.metric for record in records):
        shown = [f"{r.candidate} {r.value:,.2f}" for r in records if r.metric == metric]
        print(f"{metric:<18} " + "   ".join(shown))
    print(f"all {NUM_FILES} files equal in every run; records in {arguments.results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
