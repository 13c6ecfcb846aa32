# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks from their configurations, and records quality, speed and memory.

    python -m benchmark.run dlrm_small --repeats 5 --output runs
    python -m benchmark.run benchmark/configs --beside ../other-checkout

The first is the file of this name in benchmark/configs, the second all of them.

Every run is the project's own command in a process of its own. Configurations take turns, so a
minute in which the machine is slow falls on all of them. `--beside` runs each configuration in this
checkout and in another in turns and compares them run by run.

OUTPUT/records.jsonl gets the records, OUTPUT/NAME/N/ the output and the log of each run.

Exits 0, 1 if more than half of a configuration's runs failed or one is worse than beside, 2 if
nothing could be run.
"""

import argparse
import dataclasses
import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.compare import Comparison, compare_runs, format_comparisons
from benchmark.configurations import Configuration, Metric, Source, read_configurations
from benchmark.machine import commit
from benchmark.processes import run_process
from benchmark.record import Record, make_record, read_records, write_records
from recsys.data.whole_file import whole_file
from recsys.train.run_log import read_run_log

HERE = Path(__file__).resolve().parents[1]
_PREPARED = "prepared.json"


class FailedRunError(Exception):
    """A run that failed or did not report a metric."""


@dataclasses.dataclass(slots=True)
class Results:
    """Runs of a configuration in a checkout.

    Attributes:
        runs: metrics of each run, None of a failed one.
        seeds: seed of each run.
    """

    runs: list[Mapping[str, float] | None] = dataclasses.field(default_factory=list)
    seeds: list[int] = dataclasses.field(default_factory=list)

    def records(self, configuration: Configuration, candidate: str) -> list[Record]:
        """Makes a record per metric."""
        good = [(run, seed) for run, seed in zip(self.runs, self.seeds, strict=True) if run]
        seeds = [seed for _, seed in good] if "{seed}" in configuration.run else []
        return [
            make_record(
                configuration.name,
                candidate,
                name,
                [run[name] for run, _ in good],
                unit=metric.unit,
                direction=metric.direction,
                config=configuration.settings,
                failed=len(self.runs) - len(good),
                seeds=seeds,
                threshold=metric.threshold,
            )
            for name, metric in configuration.metrics.items()
        ]

    @property
    def is_reliable(self) -> bool:
        """At least half of the runs ended well."""
        return 2 * sum(run is None for run in self.runs) <= len(self.runs)


def prepare(configuration: Configuration, output: Path) -> Path:
    """Fills the data folder of a configuration, unless it is; returns it.

    Raises:
        FailedRunError: a command failed.
    """
    folder = output / "data" / configuration.data_folder
    if (folder / _PREPARED).is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for text in configuration.prepare:
        print(f"{configuration.name}: {text}", flush=True)
        usage = run_process(configuration.command(text, folder), folder=HERE)
        if usage.exit_status:
            raise FailedRunError(f"`{text}` ended with {usage.exit_status}:\n{usage.output}")
    with whole_file(folder / _PREPARED) as file:
        file.write(json.dumps(list(configuration.prepare)).encode())
    return folder


def run_once(
    configuration: Configuration, data: Path, folder: Path, seed: int, checkout: Path
) -> Mapping[str, float]:
    """Runs a configuration; returns its metrics.

    Args:
        configuration: what to run.
        data: its prepared folder.
        folder: new folder of the run.
        seed: seed of the run.
        checkout: working directory, whose code runs.

    Raises:
        FailedRunError: the command failed, ran too long or did not report a metric.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = configuration.command(configuration.run, data, folder, seed)
    usage = run_process(command, folder=checkout, timeout_s=configuration.timeout_s)
    (folder / "output.txt").write_text(usage.output)
    if usage.exit_status:
        last = usage.output.strip().splitlines()[-1:] or ["no output"]
        raise FailedRunError(f"exit status {usage.exit_status}: {last[0]}")
    values: dict[Source, Mapping[str, Any]] = {
        "process": dataclasses.asdict(usage),
        "log": _last_values(folder / "log.json"),
        "records": _recorded_values(folder),
    }
    return {
        name: _value(name, metric, values[metric.source])
        for name, metric in configuration.metrics.items()
    }


def _last_values(log: Path) -> dict[str, float]:
    """Returns the last value of each name in a log."""
    values: dict[str, float] = {}
    if log.is_file():
        for entry in read_run_log(log):
            values |= entry["data"]
    return values


def _recorded_values(folder: Path) -> dict[str, float | None]:
    """Returns {CANDIDATE / METRIC: value} of all records in a folder."""
    records = [record for path in sorted(folder.glob("*.jsonl")) for record in read_records(path)]
    return {f"{record.candidate} / {record.metric}": record.value for record in records}


def _value(name: str, metric: Metric, values: Mapping[str, Any]) -> float:
    value = values.get(metric.key)
    if not isinstance(value, int | float):
        raise FailedRunError(f"{name}: no number {metric.key!r} in {metric.source}")
    return float(value)


def measure(
    configurations: Sequence[Configuration],
    checkouts: Mapping[str, Path],
    output: Path,
    repeats: int,
    first_seed: int,
    most_repeats: int = 0,
) -> dict[str, dict[str, Results]]:
    """Runs configurations in turns, each in all checkouts with the same seed.

    Args:
        configurations: what to run; one whose preparation fails has no results.
        checkouts: name -> folder of the code.
        output: folder of data and runs.
        repeats: runs of each in each checkout.
        first_seed: seed of the first run; the next ones follow.
        most_repeats: with two checkouts, run a configuration up to so often, until noise is below
            the threshold of each of its metrics.

    Returns:
        Name of the configuration -> name of the checkout -> results.
    """
    ready: list[tuple[Configuration, Path]] = []
    for configuration in configurations:
        if missing := configuration.missing():
            print(f"{configuration.name}: left out, {missing[0]} is not there", flush=True)
            continue
        try:
            ready.append((configuration, prepare(configuration, output)))
        except FailedRunError as error:
            print(f"{configuration.name}: {error}", file=sys.stderr, flush=True)
    results = {c.name: {name: Results() for name in checkouts} for c, _ in ready}
    most = max(repeats, most_repeats)
    for number in range(most):
        if number >= repeats:
            ready = [pair for pair in ready if _is_noisy(pair[0], results[pair[0].name])]
        for configuration, data in ready:
            names = list(checkouts)
            for name in names if number % 2 == 0 else reversed(names):
                folder = output / configuration.name / f"{name}-{number + 1}"
                seed = first_seed + number
                values: Mapping[str, float] | None = None
                try:
                    values = run_once(configuration, data, folder, seed, checkouts[name])
                    shown = ", ".join(f"{key} {value:.6g}" for key, value in values.items())
                except FailedRunError as error:
                    shown = f"failed, {error}"
                results[configuration.name][name].runs.append(values)
                results[configuration.name][name].seeds.append(seed)
                where = f"{configuration.name} {number + 1}/{most}"
                print(f"{where}{f' {name}' if len(names) > 1 else ''}: {shown}", flush=True)
    return results


def _is_noisy(configuration: Configuration, results: Mapping[str, Results]) -> bool:
    comparisons = compare_checkouts([configuration], {configuration.name: results})
    return any(comparison.is_noisy for comparison in comparisons)


def compare_checkouts(
    configurations: Sequence[Configuration], results: Mapping[str, Mapping[str, Results]]
) -> list[Comparison]:
    """Compares two checkouts run by run."""
    comparisons = []
    for configuration in configurations:
        if configuration.name not in results:
            continue
        new, old = results[configuration.name].values()
        records = (new.records(configuration, "new"), old.records(configuration, "old"))
        for number, name in enumerate(configuration.metrics):
            pairs = [
                (ours[name], theirs[name])
                for ours, theirs in zip(new.runs, old.runs, strict=True)
                if ours is not None and theirs is not None
            ]
            comparisons.append(compare_runs(records[0][number], records[1][number], pairs))
    return comparisons


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "configurations", type=_configurations, help="a YAML file, a folder of them, or a name"
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each configuration")
    parser.add_argument(
        "--most_repeats",
        type=int,
        default=0,
        help="with --beside: up to so many, until noise is below the thresholds",
    )
    parser.add_argument("--output", type=Path, default=Path("benchmark_runs"))
    parser.add_argument("--first_seed", type=int, default=1, help="of the runs, which count up")
    parser.add_argument("--beside", type=Path, help="another checkout, built, to compare with")
    return parser


def _configurations(text: str) -> Path:
    """Returns a path; a name stands for a file of benchmark/configs."""
    own = Path(__file__).with_name("configs") / f"{text}.yaml"
    return own if own.is_file() and not Path(text).exists() else Path(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the configurations; returns the exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1")
    if options.beside is not None and not (options.beside / "benchmark").is_dir():
        parser.error(f"--beside {options.beside}: not a checkout of this project")
    if options.beside is not None and importlib.util.find_spec("scipy") is None:
        parser.error("--beside needs scipy: pip install 'recsys-recipes[benchmark]'")
    try:
        configurations = read_configurations(options.configurations)
    except ValueError as error:
        print(f"benchmark.run: {error}", file=sys.stderr)
        return 2
    checkouts = {"new": HERE}
    if options.beside is not None:
        checkouts["old"] = options.beside.resolve()
        print(f"new: {commit(HERE)}, old: {commit(options.beside)}", flush=True)
    output = options.output.resolve()
    most = options.most_repeats if options.beside is not None else 0
    results = measure(configurations, checkouts, output, options.repeats, options.first_seed, most)
    if not results:
        print("benchmark.run: nothing could be run", file=sys.stderr)
        return 2
    records = [
        record
        for configuration in configurations
        if configuration.name in results
        for record in results[configuration.name]["new"].records(configuration, "ours")
    ]
    write_records(output / "records.jsonl", records)
    for record in records:
        value = "failed" if record.value is None else f"{record.value:.6g} {record.unit}"
        flag = "" if 2 * record.failed <= record.repeats else "  UNRELIABLE: most runs failed"
        print(f"{record.benchmark:24s} {record.metric:24s} {value}{flag}")
    unreliable = any(not r.is_reliable for of in results.values() for r in of.values())
    worse = False
    if options.beside is not None:
        comparisons = compare_checkouts(configurations, results)
        print(format_comparisons(comparisons, color=sys.stdout.isatty()))
        worse = any(c.verdict == "worse" for c in comparisons)
    return int(unreliable or worse)


if __name__ == "__main__":
    sys.exit(main())
