# SPDX-License-Identifier: Apache-2.0
"""Runs cases of benchmark/cases, by name, and records what they measure.

python -m benchmark.run dlrm_small --repeats 5
python -m benchmark.run benchmark/cases --beside ../other-checkout
python -m benchmark.run inference --repeats 3
"""

import dataclasses
import importlib
import importlib.util
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from absl import flags

from benchmark import commands
from benchmark.case import Case, Group, Key, Values
from benchmark.commands import HERE, OLD, OURS, CommandCase, read_command_case
from benchmark.compare import Comparison, compare_runs, format_comparisons
from benchmark.machine import commit
from benchmark.record import RESULTS, Record, make_record, write_records
from benchmark.report import format_value, render_table
from recsys import program
from recsys.errors import FAILED, UserError
from recsys.flags import values_from_flags
from recsys.settings import Sections, require_positive, section_from_dict, setting

CASES = Path(__file__).with_name("cases")
_SHOWN_S = 1.0
"""Seconds from which a single run is reported on a line."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunnerSettings:
    """Settings of the runner."""

    repeats: int | None = setting(None, "Runs of each candidate (default: the case's)")
    first_seed: int = setting(1, "Seed of the first run; the next ones count up")
    output: Path | None = setting(None, "Folder in which inputs and runs are kept")
    records: Path | None = setting(None, "File to append the records to")
    beside: Path | None = setting(None, "Another checkout, to run its commands in turns with ours")
    most_repeats: int = setting(
        0, "With --beside: most runs to reach noise below the thresholds; 0 runs only --repeats"
    )

    def __post_init__(self) -> None:
        """Refuses invalid counts and folders."""
        if self.repeats is not None:
            require_positive(self, "repeats")
        if self.beside is not None and not (self.beside / "benchmark").is_dir():
            raise UserError(
                f"`beside` {self.beside}: not a checkout of this project", setting="beside"
            )
        if self.beside is not None and importlib.util.find_spec("scipy") is None:
            raise UserError(
                "`beside` needs scipy: pip install 'recsys-recipes[benchmark]'", setting="beside"
            )


def find_cases() -> dict[str, Path]:
    """Returns {name: file} of every case."""
    files = [p for p in sorted(CASES.iterdir()) if p.suffix in (".py", ".yaml")]
    return {p.stem: p for p in files if not p.stem.startswith("_")}


def case_class(name: str) -> type[Case] | None:
    """Returns the class of a case that is a module; None for other cases."""
    path = find_cases().get(name)
    if path is None or path.suffix != ".py":
        return None
    made: type[Case] = importlib.import_module(f"benchmark.cases.{name}").CASE
    return made


def read_cases(names: Sequence[str], beside: Path | None = None) -> list[CommandCase]:
    """Reads cases of commands, given by name, as YAML files or as folders of YAML files.

    Raises:
        UserError: a case does not exist or is invalid.
    """
    known = find_cases()
    cases = []
    for name in names:
        path = known.get(name, Path(name))
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not files:
            raise UserError(f"{path}: no case (*.yaml) in this folder", path=path)
        if files == [Path(name)] and path.suffix != ".yaml":
            raise UserError(f"there is no case {name!r}; choose from: {', '.join(known)}")
        cases += [read_command_case(file, beside) for file in files]
    return cases


def run_in_turns(
    groups: Sequence[Group],
    seeds: Sequence[int],
    is_settled: Callable[[int, Sequence[Values]], bool] = lambda _number, _rounds: False,
) -> list[list[Values]]:
    """Measures groups whose candidates all take turns.

    Args:
        groups: groups of candidates; every second round takes them in reverse order.
        seeds: seed of each round.
        is_settled: takes a group's number and its rounds so far; True ends the group.

    Returns:
        For each group the values of each round, derived ones included.
    """
    for group in groups:
        for measure in list(group.candidates.values()) * group.warmup:
            measure(seeds[0])
    rounds: list[list[Values]] = [[] for _ in groups]
    for number, seed in enumerate(seeds):
        active = [i for i in range(len(groups)) if not is_settled(i, rounds[i])]
        for i in active:
            candidates = groups[i].candidates
            values = {}
            for name in candidates if number % 2 == 0 else reversed(list(candidates)):
                started = time.perf_counter()
                values[name] = candidates[name](seed)
                if time.perf_counter() - started >= _SHOWN_S:
                    _show_run(name, number + 1, len(seeds), values[name])
            ordered = {name: values[name] for name in candidates}
            merged = {key: v for of_one in ordered.values() for key, v in of_one.items()}
            rounds[i].append({**merged, **groups[i].derive(ordered)})
    return rounds


def _show_run(name: str, number: int, count: int, values: Values) -> None:
    shown = (f"{k.metric} {format_value(v)} {k.unit}".rstrip() for k, v in values.items())
    print(f"{number}/{count} {name}: {', '.join(itertools.islice(shown, 6))}", flush=True)


def make_records(
    case: Case, rounds: Sequence[Values], seeds: Sequence[int], row: str | None = None
) -> list[Record]:
    """Makes a record of each value of a group, or only of the values of `row`."""
    config, records = case.config(), []
    for key in dict.fromkeys(key for values in rounds for key in values):
        if row not in (None, key.row):
            continue
        measured = [(v[key], seed) for v, seed in zip(rounds, seeds, strict=False) if key in v]
        good = [(value, seed) for value, seed in measured if not math.isnan(value)]
        direction, threshold = case.judge(key)
        records.append(
            make_record(
                case.name,
                key.row,
                key.metric,
                [value for value, _ in good],
                unit=key.unit,
                direction=direction,
                config=config,
                failed=len(measured) - len(good),
                seeds=[seed for _, seed in good] if case.seeded else (),
                threshold=threshold,
            )
        )
    return records


def run_case(case: Case, folder: Path, seeds: Sequence[int]) -> list[Record]:
    """Measures the groups of a case, one after the other."""
    records: list[Record] = []
    measured: list[list[Values]] = []
    for group in case.groups(folder):
        measured += run_in_turns([group], seeds[:1] if group.once else seeds)
    for rounds in measured:  # after all groups: runs may add versions to the settings
        records += make_records(case, rounds, seeds)
    return records


def run_commands(
    cases: Sequence[CommandCase], folder: Path, seeds: Sequence[int], repeats: int
) -> tuple[list[Record], list[Comparison]]:
    """Measures commands in turns; one whose preparation fails is left out."""
    ready: list[CommandCase] = []
    groups: list[Group] = []
    for case in cases:
        if missing := case.missing():
            print(f"{case.name}: left out, {missing[0]} does not exist", flush=True)
            continue
        try:
            groups += case.groups(folder)
            ready.append(case)
        except commands.FailedRunError as error:
            print(error, file=sys.stderr, flush=True)

    def is_settled(number: int, rounds: Sequence[Values]) -> bool:
        if len(rounds) < repeats:
            return False
        return not any(c.is_noisy for c in _compared(ready[number], rounds, seeds))

    rounds = run_in_turns(groups, seeds, is_settled)
    records = [
        record
        for case, of_case in zip(ready, rounds, strict=True)
        for record in make_records(case, of_case, seeds, OURS)
    ]
    pairs = zip(ready, rounds, strict=True)
    return records, [c for case, of_case in pairs for c in _compared(case, of_case, seeds)]


def _compared(
    case: CommandCase, rounds: Sequence[Values], seeds: Sequence[int]
) -> Iterator[Comparison]:
    """Compares two checkouts run by run."""
    if case.beside is None:
        return
    new, old = (make_records(case, rounds, seeds, row) for row in (OURS, OLD))
    for mine, other in zip(new, old, strict=True):
        keys = [Key(row, mine.metric, mine.unit) for row in (OURS, OLD)]
        pairs = [(values[keys[0]], values[keys[1]]) for values in rounds]
        good = [pair for pair in pairs if not any(map(math.isnan, pair))]
        yield compare_runs(dataclasses.replace(mine, candidate="new"), other, good)


def sections_of(names: Sequence[str]) -> Sections:
    """Returns the sections of the runner's flags and of the case's own, if it has any."""
    own = case_class(names[0]) if len(names) == 1 else None
    return {RunnerSettings: "runner"} | ({} if own is None else {own: names[0]})


def define_flags(names: Sequence[str] = ()) -> flags.FlagValues:
    """Returns the flags of this command with these cases, unparsed."""
    return program.new_flags(sections_of(names))


def start_ranks(count: int, arguments: Sequence[str]) -> int:
    """Runs this command in several processes; returns its exit status."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={count}", "-m", "benchmark.run", *arguments]
    threads = {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=HERE, env=os.environ | threads, check=False).returncode


def run(flag_values: flags.FlagValues, names: Sequence[str], given: Sequence[str]) -> int:
    """Runs cases; `given` is the command line for further processes.

    Returns:
        The exit status.
    """
    if not names:
        raise UserError(f"name a case; choose from: {', '.join(find_cases())}")
    sections = sections_of(names)
    values, _ = values_from_flags(flag_values, sections)
    settings = section_from_dict(RunnerSettings, values)
    comparisons: list[Comparison] = []
    fault = ""
    if own := case_class(names[0]):
        if settings.beside is not None or len(names) > 1:
            raise UserError(
                f"{names[0]} is not a command: run it without other cases and without `beside`"
            )
        case = section_from_dict(own, values)
        if case.processes > 1 and "RANK" not in os.environ:
            return start_ranks(case.processes, given)
        repeats = settings.repeats or case.repeats
        seeds = range(settings.first_seed, settings.first_seed + repeats)
        with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
            folder = (settings.output or Path(temporary)).resolve()
            records = run_case(case, folder, seeds)
        if os.environ.get("RANK", "0") != "0":
            return 0
        fault = case.fault(records)
        target = settings.records or RESULTS / f"{case.name}.jsonl"
        print(render_table(records))
    else:
        repeats = settings.repeats or Case.repeats
        most = max(repeats, settings.most_repeats if settings.beside else 0)
        seeds = range(settings.first_seed, settings.first_seed + most)
        output = (settings.output or Path("benchmark_runs")).resolve()
        beside = settings.beside and settings.beside.resolve()
        if beside is not None:
            print(f"new: {commit(HERE)}, old: {commit(beside)}", flush=True)
        records, comparisons = run_commands(read_cases(names, beside), output, seeds, repeats)
        target = settings.records or output / "records.jsonl"
        for record in records:
            value = "failed" if record.value is None else f"{record.value:.6g} {record.unit}"
            print(f"{record.benchmark:24s} {record.metric:24s} {value}")
    if not records:
        raise UserError("no case could be run")
    write_records(target, records)
    print(f"records in {target}")
    if comparisons:
        print(format_comparisons(comparisons, color=sys.stdout.isatty()))
    unreliable = [r for r in records if 2 * r.failed > r.repeats]
    for record in unreliable:
        print(f"UNRELIABLE: most runs failed: {record.benchmark}, {record.metric}")
    if fault:
        print(f"benchmark.run: {fault}", file=sys.stderr)
    worse = any(c.verdict in ("worse", "unreliable") for c in comparisons)
    return FAILED if unreliable or fault or worse else 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status.

    The status is 1 if most runs of a metric failed, the values are wrong or the other checkout is
    better; 2 if nothing could be run.
    """
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), argv[1:]))
    arguments: list[str] = []
    try:
        flag_values = define_flags(names)
    except UserError as error:
        return program.fail(str(error), error.settings)
    return program.run_command(
        lambda values: run(values, arguments, argv[1:]),
        flag_values,
        argv,
        __doc__,
        arguments=arguments,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
