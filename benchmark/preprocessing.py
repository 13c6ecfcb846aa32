# SPDX-License-Identifier: Apache-2.0
"""Compares Criteo preprocessing with Polars and DuckDB, or our engines.

    python -m benchmark.preprocessing --rows 4000000
    python -m benchmark.preprocessing --rows 1000000 --repeats 3 --engines   (make spark nvtabular)

Generates the logs once (four days), then runs the candidates in turns, each in a process of its
own: text -> counts over all days -> dictionary -> split binary. All must write the same bytes.
With --engines every round also runs each on 1,000 rows, to measure its start-up time.
"""

import argparse
import dataclasses
import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark.processes import Usage, run_interleaved, run_process
from benchmark.record import RESULTS, Direction, Record, make_record, write_records
from benchmark.report import format_value
from preproc.criteo import engines
from preproc.synthetic.clicks import GeneratorConfig, generate
from recsys.data.manifest import MANIFEST_FILE, file_checksum
from recsys.errors import as_flags

NAME = "preprocessing"
DAYS = 4
NUM_FILES = 84
CANDIDATES = ("native", "polars", "duckdb")
ENGINES = ("native", "spark-kernel", "spark-dataframe", "nvtabular")
START_ROWS = 1000
REPOSITORY = Path(__file__).parent.parent
SPARK_PYTHON = REPOSITORY / ".venv-spark" / "bin" / "python"


class BenchmarkError(RuntimeError):
    """A candidate failed, or two of them disagree."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of the measurement.

    Attributes:
        rows: generated rows.
        repeats: runs of each candidate.
        threads: threads of each candidate.
        frequency_limit: rarer categories get id 0.
        candidates: names; the output of the first is the expected one.
        with_start: run each on `START_ROWS` rows too.
    """

    rows: int
    repeats: int = 5
    threads: int = 2
    frequency_limit: int = 15
    candidates: tuple[str, ...] = CANDIDATES
    with_start: bool = False

    def command(self, candidate: str, raw: Path, output: Path) -> list[str]:
        """Returns the command line of one run."""
        engine, _, mode = candidate.partition("-")
        if engine in engines.ENGINES:
            python, flags = sys.executable, [f"--threads={self.threads}"]
            if engine == "spark":
                python = str(SPARK_PYTHON)
                flags = [f"--spark_mode={mode}", f"--master=local[{self.threads}]"]
            return [
                *(python, "-m", "preproc.criteo", f"--input={raw}", f"--output={output}"),
                *("--preset=dlrm", f"--frequency_limit={self.frequency_limit}"),
                *(f"--engine={engine}", "--format=split", "--progress=none", *flags),
            ]
        module = f"benchmark.peers.{candidate}_criteo"
        numbers = (str(self.threads), str(self.frequency_limit))
        return [sys.executable, "-m", module, str(raw), str(output), *numbers]


def dataset_checksums(root: Path) -> dict[str, str]:
    """Returns {column file: checksum} of a dataset."""
    return {
        path.relative_to(root).as_posix(): file_checksum(path)
        for split in ("train", "validation", "test")
        for path in sorted((root / split).glob("*.bin"))
    }


@dataclasses.dataclass(slots=True)
class Measured:
    """The runs of all candidates.

    Attributes:
        usages: candidate -> usage of each run on the whole input.
        starts: candidate -> usage of each run on `START_ROWS` rows; empty without `with_start`.
        versions: name -> version of Spark or NVTabular.
    """

    usages: dict[str, list[Usage]]
    starts: dict[str, list[Usage]]
    versions: dict[str, str]


def measure(
    settings: Settings,
    raws: Sequence[Path],
    work: Path,
    report: Callable[[str, int, Usage], None] = lambda *_: None,
) -> Measured:
    """Runs all candidates in turns and checks each output.

    Args:
        settings: candidates, rows and repeats.
        raws: folder of day files, and with `with_start` a second one with `START_ROWS` rows.
        work: folder for the outputs.
        report: called after each run on the whole input.

    Raises:
        BenchmarkError: a run failed or wrote other bytes than the first.
    """
    expected: dict[Path, dict[str, str]] = {}
    versions: dict[str, str] = {}

    def run_once(candidate: str, raw: Path) -> Usage:
        output = work / candidate
        usage = run_process(
            settings.command(candidate, raw, output),
            env={
                "PYTHONPATH": str(REPOSITORY),
                # Modules are compiled in the first run alone, whatever this environment says.
                "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
                "PYTHONDONTWRITEBYTECODE": "",
            },
        )
        if usage.exit_status != 0:
            raise BenchmarkError(f"{candidate} ended with {usage.exit_status}:\n{usage.output}")
        checksums = dataset_checksums(output)
        versions.update(foreign_versions(output))
        shutil.rmtree(output)
        if len(checksums) != NUM_FILES:
            raise BenchmarkError(f"{candidate} wrote {len(checksums)} files, not {NUM_FILES}")
        first = expected.setdefault(raw, checksums)
        differing = [name for name in first if first[name] != checksums.get(name)]
        if differing:
            raise BenchmarkError(
                f"{candidate} differs from {settings.candidates[0]} in {len(differing)} of "
                f"{NUM_FILES} files: {', '.join(differing[:5])}"
            )
        return usage

    def run(candidate: str) -> list[Usage]:
        return [run_once(candidate, raw) for raw in raws]

    runs = {name: functools.partial(run, name) for name in settings.candidates}
    rounds = run_interleaved(
        runs, settings.repeats, lambda name, number, usages: report(name, number, usages[0])
    )
    usages, *starts = [
        {name: [usages[i] for usages in done] for name, done in rounds.items()}
        for i in range(len(raws))
    ]
    return Measured(usages, starts[0] if starts else {}, versions)


def foreign_versions(output: Path) -> dict[str, str]:
    """Reads the version of Spark or NVTabular from a dataset's manifest."""
    manifest = output / MANIFEST_FILE
    if not manifest.exists():
        return {}
    engine = json.loads(manifest.read_text())["engine"]
    version = engine.get("spark_version") or engine.get("version")
    return {engine["name"]: version} if version else {}


def make_records(name: str, settings: Settings, measured: Measured, raw_bytes: int) -> list[Record]:
    """Makes the records of all candidates."""
    config = {
        "rows": settings.rows,
        "days": DAYS,
        "threads": settings.threads,
        "frequency_limit": settings.frequency_limit,
        **measured.versions,
    }
    records = []
    for candidate, runs in measured.usages.items():
        measurements: list[tuple[str, str, Direction, list[float]]] = [
            ("rows_per_s", "rows/s", "higher", [settings.rows / u.wall_s for u in runs]),
            ("input_mb_per_s", "MB/s", "higher", [raw_bytes / 1e6 / u.wall_s for u in runs]),
            ("cpu_us_per_row", "us", "lower", [u.cpu_s / settings.rows * 1e6 for u in runs]),
            ("peak_anonymous", "MiB", "lower", [u.peak_anon_mib for u in runs]),
        ]
        if settings.with_start:
            starts = [u.wall_s for u in measured.starts[candidate]]
            pairs = zip(runs, starts, strict=True)
            # On a busy machine a small input may take longer than a small start.
            more = [(settings.rows - START_ROWS) / (u.wall_s - s) for u, s in pairs if u.wall_s > s]
            measurements += [
                ("start", "s", "lower", starts),
                ("rows_per_s_after_start", "rows/s", "higher", more),
            ]
        if candidate != settings.candidates[0]:
            # The ratio within a round cancels most of the machine's drift.
            first = measured.usages[settings.candidates[0]]
            lead = [theirs.wall_s / ours.wall_s for ours, theirs in zip(first, runs, strict=True)]
            measurements.append((f"time_over_{settings.candidates[0]}", "x", "higher", lead))
        records += [
            make_record(
                name,
                candidate,
                metric,
                values,
                unit=unit,
                direction=direction,
                config=config,
                failed=len(runs) - len(values),
            )
            for metric, unit, direction, values in measurements
        ]
    return records


def main(argv: Sequence[str] | None = None) -> int:
    """Generates logs, measures and records; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help="generated rows, four days")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each candidate")
    parser.add_argument("--threads", type=int, default=2, help="threads of each candidate")
    parser.add_argument("--frequency_limit", type=int, default=15, help="rarer ids become 0")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--candidates", default=",".join(CANDIDATES), help="the first is checked against"
    )
    group.add_argument(
        "--engines", nargs="?", const=",".join(ENGINES), help=f"ours beside each other: {ENGINES}"
    )
    parser.add_argument("--work_dir", type=Path, help="folder for inputs and outputs (temporary)")
    parser.add_argument("--results", type=Path, help="file to append records to")
    arguments = parser.parse_args(argv)
    name = f"{NAME}_engines" if arguments.engines else NAME
    results = arguments.results or RESULTS / f"{name}.jsonl"
    settings = Settings(
        rows=arguments.rows,
        repeats=arguments.repeats,
        threads=arguments.threads,
        frequency_limit=arguments.frequency_limit,
        candidates=tuple((arguments.engines or arguments.candidates).split(",")),
        with_start=bool(arguments.engines),
    )

    def report(name: str, number: int, usage: Usage) -> None:
        print(
            f"round {number + 1} {name:<15} {settings.rows / usage.wall_s:>11,.0f} rows/s "
            f"{usage.cpu_s / settings.rows * 1e6:6.2f} us/row {usage.peak_anon_mib:7.0f} MiB",
            flush=True,
        )

    try:
        if any(c.startswith("spark") for c in settings.candidates) and not SPARK_PYTHON.exists():
            raise BenchmarkError(f"{SPARK_PYTHON}: not there; run `make spark`")
        with tempfile.TemporaryDirectory(prefix="preprocessing_", dir=arguments.work_dir) as folder:
            raw = Path(folder) / "raw"
            raws = {raw: settings.rows}
            if settings.with_start:
                raws[raw.with_name("few")] = START_ROWS
            for output, rows in raws.items():
                generate(GeneratorConfig(output=output, rows=rows, days=DAYS), progress=True)
            raw_bytes = sum(path.stat().st_size for path in raw.glob("day_*"))
            measured = measure(settings, tuple(raws), Path(folder), report)
    except (BenchmarkError, ValueError) as error:
        print(f"benchmark.preprocessing: {as_flags(str(error))}", file=sys.stderr)
        return 1
    records = make_records(name, settings, measured, raw_bytes)
    write_records(results, records)
    for metric in dict.fromkeys(record.metric for record in records):
        shown = [f"{r.candidate} {format_value(r.value)}" for r in records if r.metric == metric]
        print(f"{metric:<23} " + "   ".join(shown))
    print(f"all {NUM_FILES} files equal in every run; records in {results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
