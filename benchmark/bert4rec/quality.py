# SPDX-License-Identifier: Apache-2.0
"""Trains BERT4Rec with several seeds and compares with published metrics.

    python -m benchmark.bert4rec.quality --dataset ml-1m --preset best --steps 4500 --seeds 1,2,3

One seed after the other; a run that is interrupted continues from its last checkpoint with the same
command. The validation items choose the step of each run, its test items are ranked once. Means
over the seeds, published metrics and the learning curve of each seed are written to
FOLDER/quality.md and, as records, to the results. Further flags go to the program
(--name=value).
"""

import argparse
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark.bert4rec.program import (
    LoggedRun,
    prepare_movielens,
    read_log,
    rows,
    run_bert4rec,
)
from benchmark.configurations import recsys_data
from benchmark.record import RESULTS, Record, make_record, write_records

BENCHMARK = "bert4rec_quality"
RANKINGS = ("popular", "uniform", "full", "full_with_seen")
METRICS = ("hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10")
SHOWN = tuple(f"{r}_{m}" for r in ("popular", "full") for m in ("hr@10", "ndcg@10"))


@dataclasses.dataclass(frozen=True, slots=True)
class QualityDataset:
    """Ratings with published metrics.

    Attributes:
        name: value of `--dataset_name`.
        ratings: file below the folder of raw ratings.
        published: model -> its metrics in the order of `SHOWN`, as text; none where not given.
    """

    name: str
    ratings: str
    published: Mapping[str, tuple[str, str, str, str]]


DATASETS = {
    "ml-1m": QualityDataset(
        "ml-1m",
        "ml-1m/ml-1m.txt.gz",
        {
            "BERT4Rec's paper (400,000 steps of 256)": ("0.6970", "0.4818", "", ""),
            "TorchRec's example (100 epochs)": ("0.7078", "0.4740", "", ""),
            "bert4rec_repro": ("0.6975", "0.4751", "0.2821", "0.1516"),
            "RecTools, BERT4Rec": ("0.7151", "0.5020", "0.2921", "0.1618"),
            "RecTools, SASRec": ("0.7041", "0.4951", "0.3058", "0.1779"),
            "antklen, BERT4Rec": ("", "", "0.2843", "0.1537"),
            "antklen, SASRec+ with 3,000 negatives": ("", "", "0.3159", "0.1857"),
            "eSASRec": ("", "", "0.3133", "0.1772"),
        },
    ),
    "beauty": QualityDataset(
        "amazon",
        "amazon_beauty/beauty.txt.gz",
        {
            "BERT4Rec's paper": ("0.3025", "0.1862", "", ""),
            "RecTools, BERT4Rec": ("0.2506", "0.1555", "0.0434", "0.0242"),
            "RecTools, SASRec": ("0.3062", "0.2012", "0.0595", "0.0359"),
            "antklen, SASRec+": ("", "", "0.0533", "0.0327"),
        },
    ),
}


def train(flags: Sequence[str], folder: Path, steps: int) -> LoggedRun:
    """Trains, or continues an interrupted run; returns its log."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.json"
    run_bert4rec(
        log,
        *flags,
        *(f"--max_steps={steps}", "--num_epochs=100000", "--save_freq=250"),
        *(f"--export_root={folder / 'checkpoints'}", "--resume"),
    )
    return read_log(log)


def markdown(runs: Mapping[int, LoggedRun], dataset: QualityDataset) -> str:
    """Formats means over the seeds, published metrics and learning curves."""
    lines = [
        f"| mean of {len(runs)} seeds | " + " | ".join(m.upper() for m in METRICS) + " |",
        "|---" * (len(METRICS) + 1) + "|",
    ]
    for ranking in RANKINGS:
        cells = [f"{_mean(runs, f'{ranking}_{metric}'):.4f}" for metric in METRICS]
        lines.append(f"| {ranking} | {' | '.join(cells)} |")
    lines += ["", f"| model | {' | '.join(SHOWN)} |", "|---" * (len(SHOWN) + 1) + "|"]
    lines.append(f"| here | {' | '.join(f'{_mean(runs, name):.4f}' for name in SHOWN)} |")
    for seed, run in runs.items():
        cells = [f"{run.final[f'test_{name}']:.4f}" for name in SHOWN]
        lines.append(f"| here, seed {seed} | {' | '.join(cells)} |")
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in dataset.published.items()]
    for seed, run in runs.items():
        lines += ["", f"| seed {seed}: seconds | step | validation {' | '.join(SHOWN)} |"]
        lines.append("|---" * (len(SHOWN) + 2) + "|")
        for seconds, step, *metrics in rows(run, SHOWN):
            lines.append(f"| {seconds:.0f} | {step} | {' | '.join(f'{m:.4f}' for m in metrics)} |")
    return "\n".join(lines) + "\n"


def _mean(runs: Mapping[int, LoggedRun], name: str) -> float:
    return statistics.mean(run.final[f"test_{name}"] for run in runs.values())


def records(runs: Mapping[int, LoggedRun], config: dict[str, object]) -> list[Record]:
    """Makes a record per mean test metric and per seed."""
    curves = {seed: rows(run, SHOWN) for seed, run in runs.items()}
    return [
        make_record(
            BENCHMARK,
            "ours",
            f"mean test {ranking} {metric}",
            [_mean(runs, f"{ranking}_{metric}")],
            unit="",
            direction="higher",
            config=config,
        )
        for ranking in RANKINGS
        for metric in METRICS
    ] + [
        make_record(
            BENCHMARK,
            "ours",
            "validation curve, seconds to the end",
            [curve[-1][0]],
            unit="s",
            direction="lower",
            config=config
            | {"seed": seed, "test": {name: runs[seed].final[f"test_{name}"] for name in SHOWN}}
            | {"columns": ["elapsed_s", "step", *SHOWN], "curve": curve},
        )
        for seed, curve in curves.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains each seed, prints and records the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dataset", choices=tuple(DATASETS), default="ml-1m")
    parser.add_argument("--preset", default="best")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seeds", default="1,2,3", help="of the runs, separated by commas")
    parser.add_argument("--folder", type=Path, default=Path("quality_run"), help="of these runs")
    parser.add_argument("--results", type=Path, default=RESULTS / f"{BENCHMARK}.jsonl")
    options, overrides = parser.parse_known_args(arguments)
    if unknown := [flag for flag in overrides if not flag.startswith("--") or "=" not in flag]:
        parser.error(f"flags for the program must look like --name=value, not {unknown[0]}")
    dataset = DATASETS[options.dataset]
    folder = options.folder / options.dataset
    folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare_movielens(recsys_data() / dataset.ratings, folder / "dataset")
    flags = (
        f"--config={options.preset}",
        f"--dataset_name={dataset.name}",
        f"--dataset_path={prepared}",
        *overrides,
    )
    runs: dict[int, LoggedRun] = {}
    for seed in map(int, options.seeds.split(",")):
        print(f"seed {seed}: {options.steps} steps", flush=True)
        runs[seed] = train((*flags, f"--seed={seed}"), folder / f"seed_{seed}", options.steps)
        (folder / "quality.md").write_text(markdown(runs, dataset))
    print(markdown(runs, dataset))
    config = {"dataset": options.dataset, "steps": options.steps, "preset": options.preset}
    write_records(
        options.results,
        records(runs, config | {"seeds": list(runs), "overrides": overrides}),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
