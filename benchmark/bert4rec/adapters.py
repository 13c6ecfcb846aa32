# SPDX-License-Identifier: Apache-2.0
"""Compares full fine-tuning, LoRA and iLoRA from one pretrained BERT4Rec.

    python -m benchmark.bert4rec.adapters --dataset ml-100k
    python -m benchmark.bert4rec.adapters --dataset amazon_beauty --pretrain 3000 --steps 1000

Each method trains the pretrained model for --steps more steps at each of --rates; the validation
items choose the rate, the test items are ranked once. Seconds of a step are medians of steps in
turns, in one process; memory is that of a process of each method alone. A run that was cut off
continues with the same command. The table is written to FOLDER/table.md.
"""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmark.bert4rec.program import (
    LoggedRun,
    prepare_movielens,
    read_log,
    run_bert4rec,
)
from benchmark.configurations import recsys_data
from benchmark.kernels.stopwatch import time_interleaved
from benchmark.processes import run_process
from benchmark.record import RESULTS, Direction, Record, make_record, write_records
from bert4rec.config import Bert4RecConfig
from bert4rec.model.memory import trained_memory
from bert4rec.recipe import Bert4RecRecipe
from bert4rec.scripts.flags import PRESETS
from recsys.train.run import set_up_machine

BENCHMARK = "bert4rec_adapters"
RATINGS = {
    "ml-100k": "ml-100k/u.data.gz",
    "ml-1m": "ml-1m/ml-1m.txt.gz",
    "amazon_beauty": "amazon_beauty/beauty.txt.gz",
}
METHODS = {"full": "none", "lora": "lora", "ilora": "ilora"}
METRICS = ("full_hr@10", "full_ndcg@10", "popular_hr@10", "popular_ndcg@10")
PRETRAINED = "pretrained"
_BATCHES = 16
_MEASURED_STEPS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """The pretrained model and how it is trained further.

    Attributes:
        preset: settings of the model and its training.
        dataset: folder of the prepared dataset.
        base: folder of the pretrained run.
        folder: folder of the logs.
        steps: steps of each run.
        threads: CPU threads.
    """

    preset: str
    dataset: Path
    base: Path
    folder: Path
    steps: int
    threads: int

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of every run."""
        return (
            *(f"--config={self.preset}", f"--dataset_path={self.dataset}"),
            *(f"--num_threads={self.threads}", "--num_epochs=100000"),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Tuned:
    """The test figures of a method at its best rate.

    Attributes:
        lr: learning rate; 0 for the pretrained model itself.
        metrics: metric -> value on the test items.
    """

    lr: float
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, run: LoggedRun, lr: float) -> "Tuned":
        """Reads the figures of a run."""
        return cls(lr, {metric: run.final[f"test_{metric}"] for metric in METRICS})


def pretrain(setup: Setup, steps: int) -> None:
    """Trains the model that all methods start from."""
    run_bert4rec(
        setup.folder / "pretrain.json",
        *setup.flags,
        *(f"--max_steps={steps}", f"--export_root={setup.base}", "--resume"),
    )


def tune(setup: Setup, method: str, rates: Sequence[float]) -> Tuned:
    """Trains with one method at each rate and takes the best."""
    runs = {}
    for rate in rates:
        log = setup.folder / f"{method}_{rate:g}_{setup.steps}.json"
        done = log.is_file() and f"test_{METRICS[0]}" in read_log(log).final
        runs[rate] = read_log(log) if done else _run_method(setup, method, rate, log)
        print(f"{method} at {rate:g}: validation {runs[rate].final['best_metric']:.4f}", flush=True)
    best = max(runs, key=lambda rate: runs[rate].final["best_metric"])
    return Tuned.of(runs[best], best)


def _run_method(setup: Setup, method: str, rate: float, log: Path) -> LoggedRun:
    return run_bert4rec(
        log,
        *setup.flags,
        *(f"--load_checkpoint_path={setup.base}", f"--adapter={METHODS[method]}"),
        *(f"--lr={rate}", f"--warmup_steps={setup.steps // 10}"),
        *(f"--max_steps={setup.steps}", f"--test_freq={setup.steps}"),
    )


def pretrained(setup: Setup) -> Tuned:
    """Tests the pretrained model."""
    log = setup.folder / "test.json"
    flags = (*setup.flags, "--mode=test", f"--load_checkpoint_path={setup.base}")
    return Tuned.of(run_bert4rec(log, *flags), 0.0)


def open_recipe(setup: Setup, method: str) -> Bert4RecRecipe:
    """Opens the dataset and the pretrained model for a method."""
    own = {"dataset_path": str(setup.dataset), "load_checkpoint_path": str(setup.base)}
    own |= {"adapter": METHODS[method]}
    values = PRESETS.read(setup.preset).values | own | {"num_threads": setup.threads}
    config = Bert4RecConfig.from_dict(values)
    recipe = Bert4RecRecipe.open(config, set_up_machine(config, lambda _line: None))
    recipe.load()
    return recipe


def training_step(recipe: Bert4RecRecipe) -> Callable[[], object]:
    """Returns a call that trains on the next batch."""
    training = recipe.training()
    first = itertools.islice(training.source.batches(0, 0), _BATCHES)
    batches = itertools.cycle(list(first))
    return lambda: training.step(next(batches), 1e-4)


def measure(setup: Setup, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Measures time, memory and trained parameters; returns method -> metric -> samples."""
    recipes = {method: open_recipe(setup, method) for method in METHODS}
    steps = {method: training_step(recipe) for method, recipe in recipes.items()}
    seconds = time_interleaved(steps, repeats)
    measured = {}
    for method, recipe in recipes.items():
        parameters = list(recipe.model.parameters())
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        counted = trained_memory(recipe.config, recipe.model.num_items, "adam").total
        measured[method] = {
            "trainable_percent": [100 * trained / sum(p.numel() for p in parameters)],
            "step_ms": [1e3 * s for s in seconds[method]],
            "state_mib": [counted / 2**20],
            "peak_mib": [_peak_mib(setup, method)],
        }
    return measured


def _peak_mib(setup: Setup, method: str) -> float:
    paths = [str(path) for path in (setup.dataset, setup.base, setup.folder)]
    command = [sys.executable, "-m", "benchmark.bert4rec.adapters", "--alone", method]
    usage = run_process([*command, setup.preset, str(setup.threads), *paths])
    if usage.exit_status:
        raise RuntimeError(f"{method} failed:\n{usage.output}")
    return usage.peak_anon_mib


def train_alone(method: str, preset: str, threads: str, *paths: str) -> None:
    """Trains some steps with one method, for its memory."""
    dataset, base, folder = map(Path, paths)
    setup = Setup(preset, dataset, base, folder, 0, int(threads))
    step = training_step(open_recipe(setup, method))
    for _ in range(_MEASURED_STEPS):
        step()


COLUMNS: dict[str, tuple[str, Direction]] = {
    **dict.fromkeys(METRICS, ("", "higher")),
    "trainable_percent": ("%", "lower"),
    "step_ms": ("ms", "lower"),
    "state_mib": ("MiB", "lower"),
    "peak_mib": ("MiB", "lower"),
}
"""Metric -> its unit and better direction."""


def collect(
    tuned: Mapping[str, Tuned], measured: Mapping[str, Mapping[str, list[float]]]
) -> dict[str, dict[str, list[float]]]:
    """Joins quality and cost; returns method -> metric -> samples."""
    return {
        method: {metric: [value] for metric, value in result.metrics.items()}
        | dict(measured.get(method, {}))
        for method, result in tuned.items()
    }


def table(tuned: Mapping[str, Tuned], samples: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Formats a row of medians per method."""
    lines = [f"| | lr | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for method, values in samples.items():
        cells = [
            f"{np.median(values[metric]):.4f}"
            if metric in METRICS
            else f"{np.median(values[metric]):.2f}"
            if metric in values
            else ""
            for metric in COLUMNS
        ]
        lines.append(f"| {method} | {tuned[method].lr:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def records(
    samples: Mapping[str, Mapping[str, list[float]]], config: Mapping[str, object]
) -> list[Record]:
    """Makes a record for each method and metric."""
    return [
        make_record(
            *(BENCHMARK, method, metric, values),
            unit=COLUMNS[metric][0],
            direction=COLUMNS[metric][1],
            config=config,
        )
        for method, metrics in samples.items()
        for metric, values in metrics.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dataset", choices=RATINGS, default="ml-100k")
    parser.add_argument("--data", type=Path, help="ratings file; by default that of --dataset")
    parser.add_argument("--folder", type=Path, help="of this run; by default adapters_DATASET")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--pretrain", type=int, default=160, help="steps of the first training")
    parser.add_argument("--steps", type=int, default=100, help="of each method")
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    parser.add_argument("--repeats", type=int, default=15, help="measured steps of each method")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS / f"{BENCHMARK}.jsonl")
    parser.add_argument("--alone", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.alone:
        train_alone(*options.alone)
        return 0
    folder = options.folder or Path(f"adapters_{options.dataset}")
    folder.mkdir(parents=True, exist_ok=True)
    ratings = options.data or recsys_data() / RATINGS[options.dataset]
    dataset = prepare_movielens(ratings, folder / "dataset")
    base = folder / f"pretrained_{options.pretrain}"
    setup = Setup(options.preset, dataset, base, folder, options.steps, options.threads)
    pretrain(setup, options.pretrain)
    tuned = {PRETRAINED: pretrained(setup)}
    tuned |= {method: tune(setup, method, options.rates) for method in METHODS}
    samples = collect(tuned, measure(setup, options.repeats))
    text = table(tuned, samples)
    (folder / "table.md").write_text(text)
    print(text)
    names = ("dataset", "preset", "pretrain", "steps", "rates", "threads")
    write_records(options.results, records(samples, {n: getattr(options, n) for n in names}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
