# SPDX-License-Identifier: Apache-2.0
"""Trains BERT4Rec on MovieLens-1M and compares with published metrics.

    python -m benchmark.bert4rec_ml1m --minutes 60 --folder ml1m_run
    python -m benchmark.bert4rec_ml1m --steps 4500 --folder ml1m_run

With --minutes a probe of some seconds measures how many steps fit, so that the learning rate
reaches zero when time is up; the results in docs come from --steps. An interrupted run continues
from its last checkpoint with the same command. The learning curve is written to FOLDER/curve.md
and, with the test metrics, to the results.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmark.bert4rec_program import (
    LoggedRun,
    prepare_movielens,
    ratings_folder,
    read_log,
    rows,
    run_bert4rec,
)
from benchmark.record import RESULTS, Record, make_record, write_records

BENCHMARK = "bert4rec_ml1m"
RANKINGS = ("popular", "uniform", "full", "full_with_seen")
METRICS = ("hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10")
SHOWN = tuple(f"{r}_{m}" for r in ("popular", "full") for m in ("hr@10", "ndcg@10"))
PROBE_STEPS = 40
TRAINING_FRACTION = 0.9
"""Fraction of the time for training; the rest is for evaluations."""

PUBLISHED = """\
| published, 100 popular negatives | HR@1 | HR@5 | HR@10 | NDCG@5 | NDCG@10 |
|---|---|---|---|---|---|
| BERT4Rec paper (400,000 steps of 256) | | | 0.6970 | | 0.4818 |
| TorchRec's example (100 epochs) | 0.2636 | 0.5895 | 0.7078 | 0.4356 | 0.4740 |
| bert4rec_repro | | | 0.6975 | | 0.4751 |

| published, all items | HR@10 | NDCG@10 |
|---|---|---|
| bert4rec_repro | 0.2821 | 0.1516 |
| antklen, BERT4Rec | 0.2843 | 0.1537 |
| antklen, SASRec+ | 0.3152 | 0.1821 |
"""


def planned_steps(flags: Sequence[str], folder: Path, minutes: float) -> int:
    """Returns the number of steps that fit into `minutes`.

    The first run measures it and writes it to a file, from which later runs read it.
    """
    plan = folder / "plan.json"
    if plan.is_file():
        kept = json.loads(plan.read_text())
        if kept["flags"] != list(flags) or kept["minutes"] != minutes:
            raise SystemExit(f"{folder} belongs to a run with other settings; name another folder")
        return int(kept["steps"])
    probe = run_bert4rec(
        folder / "probe.json",
        *flags,
        f"--max_steps={PROBE_STEPS}",
        "--benchmark_warmup_steps=5",
    )
    batch = 128
    for flag in flags:
        if flag.startswith("--train_batch_size="):
            batch = int(flag.partition("=")[2])
    rate = probe.final["average_train_throughput"] / batch
    steps = max(int(rate * minutes * 60 * TRAINING_FRACTION), 1)
    plan.write_text(json.dumps({"flags": list(flags), "minutes": minutes, "steps": steps}))
    return steps


def train(flags: Sequence[str], folder: Path, steps: int) -> LoggedRun:
    """Trains, or continues an interrupted run; returns its log."""
    print(f"{steps} steps", flush=True)
    log = folder / "log.json"
    run_bert4rec(
        log,
        *flags,
        *(f"--max_steps={steps}", "--num_epochs=100000", "--save_freq=500"),
        *(f"--export_root={folder / 'checkpoints'}", "--resume"),
    )
    return read_log(log)


def markdown(run: LoggedRun) -> str:
    """Formats test metrics, published metrics and the learning curve."""
    lines = [
        "| ours | " + " | ".join(m.upper() for m in METRICS) + " |",
        "|---" * (len(METRICS) + 1) + "|",
    ]
    for ranking in RANKINGS:
        cells = [f"{run.final[f'test_{ranking}_{metric}']:.4f}" for metric in METRICS]
        lines.append(f"| {ranking} | {' | '.join(cells)} |")
    lines += ["", PUBLISHED, "| seconds | step | " + " | ".join(SHOWN) + " |"]
    lines.append("|---" * (len(SHOWN) + 2) + "|")
    for seconds, step, *metrics in rows(run, SHOWN):
        lines.append(f"| {seconds:.0f} | {step} | {' | '.join(f'{m:.4f}' for m in metrics)} |")
    return "\n".join(lines) + "\n"


def records(run: LoggedRun, config: dict[str, object]) -> list[Record]:
    """Makes a record per test metric, and one with the learning curve."""
    curve = rows(run, SHOWN)
    columns = ["elapsed_s", "step", *SHOWN]
    return [
        make_record(
            BENCHMARK,
            "ours",
            f"test {ranking} {metric}",
            [run.final[f"test_{ranking}_{metric}"]],
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
            config=config | {"columns": columns, "curve": curve},
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, prints and records the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=int, help="instead of as many as --minutes hold")
    parser.add_argument("--data", type=Path, default=ratings_folder() / "ml-1m" / "ml-1m.txt.gz")
    parser.add_argument("--folder", type=Path, default=Path("ml1m_run"), help="of this run")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--results", type=Path, default=RESULTS / f"{BENCHMARK}.jsonl")
    options, overrides = parser.parse_known_args(arguments)
    if unknown := [flag for flag in overrides if not flag.startswith("--") or "=" not in flag]:
        parser.error(f"flags for the program must look like --name=value, not {unknown[0]}")
    options.folder.mkdir(parents=True, exist_ok=True)
    dataset = prepare_movielens(options.data, options.folder / "dataset")
    flags = (
        f"--config={options.preset}",
        "--dataset_name=ml-1m",
        f"--dataset_path={dataset}",
        "--choose_by=popular",
        *overrides,
    )
    steps = options.steps or planned_steps(flags, options.folder, options.minutes)
    run = train(flags, options.folder, steps)
    (options.folder / "curve.md").write_text(markdown(run))
    print(markdown(run))
    config = {"steps": steps, "preset": options.preset, "overrides": overrides}
    write_records(options.results, records(run, config))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
