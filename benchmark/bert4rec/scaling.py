# SPDX-License-Identifier: Apache-2.0
"""Measures BERT4Rec of 5M to 430M parameters, and options.

    python -m benchmark.bert4rec.scaling --items 20000 --batch 16 --steps 20
    python -m benchmark.bert4rec.scaling --dataset data/electronics --batch 256 --train_steps 20000

Every figure comes from --run_benchmark of the training program, each run in a process of its own,
in turns. The first half runs the presets of all sizes, the second --table_size with each option.
Parameters are those at the catalogue of the run: --items generated ones, or those of --dataset.
Quality, after --train_steps, is measured with --dataset alone. Records go to --results, a picture
for each figure over the size to --pictures. Other flags (--name=value) go to the program.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmark.bert4rec.program import LoggedRun, run_bert4rec
from benchmark.processes import run_interleaved
from benchmark.record import RESULTS, Direction, Record, make_record, write_records
from benchmark.report import render_table
from recsys.pages.charts import Axis, line_chart

BENCHMARK = "bert4rec_scaling"
PRESETS = {
    "5m": "5m",
    "85m": "scaling-85m",
    "130m": "scaling-130m",
    "430m": "scaling-430m",
}
OPTIONS = {
    "baseline": (),
    "AMP": ("--amp",),
    "compile": ("--torch_compile",),
    "AMP + compile": ("--amp", "--torch_compile"),
}
"""Row of the table -> flags on top of those of the baseline."""

ADAPTERS = {
    "LoRA": ("--adapter=lora",),
    "iLoRA": ("--adapter=ilora",),
    "iLoRA + AMP": ("--adapter=ilora", "--amp"),
}
"""Rows of runs that begin with a checkpoint, which a run of one step saves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a record, computed from a figure of the program."""

    name: str
    unit: str
    direction: Direction
    factor: float = 1.0


METRICS = {
    "benchmark_samples_per_s": Metric("throughput", "samples/s", "higher"),
    "benchmark_tokens_per_s": Metric("tokens", "tokens/s", "higher"),
    "benchmark_targets_per_s": Metric("targets", "targets/s", "higher"),
    "benchmark_step_time_p50": Metric("step time p50", "ms", "lower", 1e3),
    "benchmark_step_time_p90": Metric("step time p90", "ms", "lower", 1e3),
    "benchmark_peak_memory_bytes": Metric("peak memory", "MiB", "lower", 2**-20),
}
"""Figure of the program -> metric."""

QUALITY = {
    "test_full_hr@10": Metric("HR@10, all items", "", "higher"),
    "test_full_ndcg@10": Metric("NDCG@10, all items", "", "higher"),
}
PARAMETERS = "parameters"
PICTURES = {
    "throughput": ("Training throughput", ("throughput",)),
    "memory": ("Peak memory of a training step", ("peak memory",)),
    "time": ("Time of a training step", ("step time p50", "step time p90")),
    "quality": ("Test, all items", ("HR@10, all items", "NDCG@10, all items")),
}
"""File -> title, and the metrics that it shows."""

MEAN_LENGTH = 10
"""Items of a generated history; Amazon Electronics has about nine."""


def program_flags(options: argparse.Namespace) -> list[str]:
    """Returns the flags that all runs share."""
    steps = options.warmup + options.steps
    shared = [
        *(f"--train_batch_size={options.batch}", "--num_epochs=1000000"),
        *("--run_benchmark", f"--benchmark_steps={options.steps}"),
        f"--benchmark_warmup_steps={options.warmup}",
    ]
    if options.dataset is not None:
        steps = max(steps, options.train_steps)
        return [*shared, f"--dataset_path={options.dataset}", f"--max_steps={steps}"]
    users = max(4 * options.batch, 64)
    return [
        *(*shared, f"--max_steps={steps}", "--test_freq=1000000", "--dataset_name=random"),
        *(f"--random_item_count={options.items}", f"--random_user_count={users}"),
        f"--random_size={users * MEAN_LENGTH}",
    ]


def measure(candidates: Mapping[str, Sequence[str]], repeats: int) -> dict[str, list[LoggedRun]]:
    """Runs the program with the flags of each candidate, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        calls = {
            name: partial(run_bert4rec, Path(folder) / "log.json", *flags)
            for name, flags in candidates.items()
        }
        return run_interleaved(calls, repeats)


def measure_options(size: str, flags: Sequence[str], repeats: int) -> dict[str, list[LoggedRun]]:
    """Runs a size with each option and each adapter, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        preset, run = f"--config={PRESETS[size]}", Path(folder)
        run_bert4rec(
            run / "log.json",
            *(preset, *flags, "--norun_benchmark", "--max_steps=1", f"--export_root={run / 'run'}"),
        )
        adapted = f"--load_checkpoint_path={run / 'run'}"
        rows = {name: [preset, *flags, *more] for name, more in OPTIONS.items()}
        rows |= {name: [preset, *flags, adapted, *more] for name, more in ADAPTERS.items()}
        return measure({f"{size} {name}": row for name, row in rows.items()}, repeats)


def make_records(
    runs: Mapping[str, Sequence[LoggedRun]], config: Mapping[str, object], with_quality: bool
) -> list[Record]:
    """Makes a record per candidate and metric, parameters included."""
    records = []
    for name, repeats in runs.items():
        counts = [float(run.parameters) for run in repeats]
        make = partial(make_record, BENCHMARK, name, config=config)
        records.append(make(PARAMETERS, counts, unit="", direction="lower"))
        for figure, metric in (METRICS | (QUALITY if with_quality else {})).items():
            values = [run.final[figure] * metric.factor for run in repeats]
            records.append(make(metric.name, values, unit=metric.unit, direction=metric.direction))
    return records


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draws a picture of each measured figure; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {(record.candidate, record.metric): record for record in records}
    files = []
    for name, (title, metrics) in PICTURES.items():
        shown = [record for record in records if record.metric in metrics]
        series: dict[str, list[tuple[float, float]]] = {metric: [] for metric in metrics}
        for record in shown:
            parameters = values[record.candidate, PARAMETERS].value
            if record.value is not None and parameters is not None:
                series[record.metric].append((parameters, record.value))
        if all(series.values()):
            path = folder / f"{BENCHMARK}_{name}.svg"
            x, y = Axis("parameters", is_log=True), Axis(shown[0].unit, from_zero=True)
            lines = {metric: sorted(points) for metric, points in series.items()}
            path.write_text(line_chart(title, x, y, lines) + "\n")
            files.append(path)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, records and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default=",".join(PRESETS), help="of the presets, by commas")
    parser.add_argument("--table_size", default="130m", help="of the table of options; none: ''")
    parser.add_argument("--items", type=int, default=20_000, help="of the generated catalogue")
    parser.add_argument("--dataset", type=Path, help="prepared dataset in place of a generated one")
    parser.add_argument("--train_steps", type=int, default=0, help="of a run with --dataset")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20, help="measured in each run")
    parser.add_argument("--warmup", type=int, default=5, help="steps before those")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS / f"{BENCHMARK}.jsonl")
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"))
    options, overrides = parser.parse_known_args(arguments)
    if unknown := [flag for flag in overrides if not flag.startswith("--") or "=" not in flag]:
        parser.error(f"flags for the program must look like --name=value, not {unknown[0]}")
    sizes = [size for size in options.sizes.split(",") if size]
    table_sizes = [options.table_size] if options.table_size else []
    if unknown := [size for size in (*sizes, *table_sizes) if size not in PRESETS]:
        parser.error(f"no size {unknown[0]}; there are {', '.join(PRESETS)}")
    shared = program_flags(options)
    config: dict[str, object] = {"batch": options.batch, "steps": options.steps}
    if options.dataset is None:
        config["items"] = options.items
    else:
        config |= {"dataset": options.dataset.name, "train steps": options.train_steps}
    if overrides:
        config["flags"] = " ".join(overrides)
    candidates = {size: [f"--config={PRESETS[size]}", *shared, *overrides] for size in sizes}
    of_sizes = make_records(
        measure(candidates, options.repeats), config, options.dataset is not None
    )
    of_options = [
        record
        for size in table_sizes
        for record in make_records(
            measure_options(size, [*shared, *overrides], options.repeats),
            config,
            with_quality=False,
        )
    ]
    print(render_table([*of_sizes, *of_options]), flush=True)
    write_records(options.results, [*of_sizes, *of_options])
    for path in draw(of_sizes, options.pictures):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
