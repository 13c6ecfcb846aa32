# SPDX-License-Identifier: Apache-2.0
"""Compares our BERT4Rec with RecBole's on ml-100k, in speed and quality.

    python -m benchmark.bert4rec.recbole                # speed, one and two threads
    python -m benchmark.bert4rec.recbole --quality      # rankings, three seeds
    python -m benchmark.bert4rec.recbole --to_the_end   # rankings after each one's early stop

Samples, sizes and batch are the same. Candidates take turns, each in a process of its own. Ours
trains a whole epoch, because batches of short sequences are cheaper. RecBole pads every batch to
the same size, so a few batches are enough. `--to_the_end` takes hours; a run that is interrupted
continues with the same `--folder`. `make recbole` makes the environment of RecBole.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.bert4rec.program import (
    LoggedRun,
    prepare_movielens,
    run_bert4rec,
)
from benchmark.configurations import recsys_data
from benchmark.processes import run_interleaved
from benchmark.record import RESULTS, Record, make_record, write_records
from recsys.data.sequences import read_sequences

BENCHMARK = "bert4rec_recbole"
REPOSITORY = Path(__file__).resolve().parents[2]
RECBOLE_PYTHON = REPOSITORY / ".venv-recbole" / "bin" / "python"
STEPS_PER_EPOCH = 48
SETTING = {"samples": 97_171, "batch": 2048, "max_len": 50, "emb_dim": 64, "blocks": 2}
# The same setting as recsys.train.memory makes in our programs.
KEEP_FREED_MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"
}
OURS = "ours, preset recbole"
FASTEST = "RecBole 1.2.1, anomaly mode off, freed memory kept"  # equal to the others in quality
RECBOLE: dict[str, tuple[str, dict[str, str]]] = {
    "RecBole 1.2.1 as shipped": ("as_shipped", {}),
    "RecBole 1.2.1, anomaly mode off": ("off", {}),
    FASTEST: ("off", KEEP_FREED_MEMORY),
}


def write_interactions(dataset: Path, folder: Path) -> Path:
    """Writes a dataset for RecBole; returns its folder.

    Positions in the history serve as timestamps, so there are no ties.
    """
    sequences = read_sequences(dataset)
    users = np.repeat(np.arange(1, sequences.num_users + 1), sequences.lengths)
    positions = np.arange(len(users)) - np.repeat(sequences.offsets[:-1], sequences.lengths)
    target = folder / "ml-100k"
    target.mkdir(parents=True, exist_ok=True)
    table = np.stack([users, sequences.items.astype(np.int64), positions], axis=1)
    np.savetxt(
        target / "ml-100k.inter",
        table,
        fmt="%d",
        delimiter="\t",
        header="user_id:token\titem_id:token\ttimestamp:float",
        comments="",
    )
    return target


def run_recbole(
    data: Path, threads: int, candidate: str, *arguments: str, seed: int = 2020
) -> dict[str, Any]:
    """Runs RecBole in a process; returns the metrics that it prints.

    Raises:
        RuntimeError: it failed, for the reason on standard error.
    """
    mode, environment = RECBOLE[candidate]
    command = [
        *(str(RECBOLE_PYTHON), "-W", "ignore"),
        str(REPOSITORY / "benchmark" / "peers" / "recbole_bert4rec.py"),
        *(f"--data={data}", f"--threads={threads}", f"--seed={seed}", f"--anomaly_mode={mode}"),
        *arguments,
    ]
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(data), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, text=True, env={**variables, **environment}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed, see above")
    metrics: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if metrics["train_samples"] != SETTING["samples"]:
        raise RuntimeError(f"RecBole trains on {metrics['train_samples']} samples, not the same")
    return metrics


def run_ours(dataset: Path, folder: Path, threads: int, *arguments: str) -> LoggedRun:
    """Trains ours with the preset of RecBole's settings."""
    return run_bert4rec(
        folder / "log.json",
        *("--config=recbole", "--dataset_name=ml-100k", f"--dataset_path={dataset}"),
        *(f"--num_threads={threads}", f"--print_freq={STEPS_PER_EPOCH}", "--base_device=cpu"),
        *arguments,
    )


def train_preset(
    dataset: Path, folder: Path, preset: str, seed: int, options: argparse.Namespace, *flags: str
) -> LoggedRun:
    """Trains one of our presets and tests it; `folder` gets its checkpoints."""
    return run_ours(
        dataset,
        folder,
        max(options.threads),
        *(f"--config={preset}", f"--seed={seed}", f"--num_epochs={options.epochs}"),
        f"--export_root={folder / f'{preset}_{seed}'}",
        *flags,
    )


def our_rate(run: LoggedRun) -> float:
    """Returns our training samples per second."""
    return run.final["average_train_throughput"]


def measure_speed(
    dataset: Path, inter: Path, folder: Path, options: argparse.Namespace
) -> list[Record]:
    """Measures samples per second of each candidate and number of threads."""
    records = []
    for threads in options.threads:
        ours = partial(
            run_ours, dataset, folder, threads, f"--max_steps={options.our_steps}", "--seed=2020"
        )
        candidates = {OURS: lambda work=ours: our_rate(work())}
        for name in RECBOLE:
            theirs = partial(
                run_recbole, inter, threads, name, f"--batches={options.recbole_batches}"
            )
            candidates[name] = lambda work=theirs: float(work()["samples_per_s"])
        rates = run_interleaved(
            candidates,
            options.repeats,
            lambda name, number, rate: print(f"{number} {name}: {rate:,.0f}/s", flush=True),
        )
        for name, samples in rates.items():
            records.append(
                make_record(
                    BENCHMARK,
                    name,
                    f"train samples/s, {threads} thread{'s' if threads > 1 else ''}",
                    samples,
                    unit="samples/s",
                    direction="higher",
                    config=SETTING | {"threads": threads},
                )
            )
            ratio = np.median(rates[OURS]) / np.median(samples)
            print(f"{threads} threads, {name}: {np.median(samples):,.0f}/s, ours x {ratio:.2f}")
    return records


def quality_records(
    candidate: str, qualities: Sequence[dict[str, float]], config: dict[str, Any]
) -> list[Record]:
    """Makes a record per metric, with one sample per seed."""
    return [
        make_record(
            BENCHMARK,
            candidate,
            metric,
            [quality[metric] for quality in qualities],
            unit="min" if metric.startswith("minutes") else "",
            direction="lower" if metric.startswith("minutes") else "higher",
            config=SETTING | config | {"mean": float(np.mean([f[metric] for f in qualities]))},
        )
        for metric in qualities[0]
    ]


def our_rankings(run: LoggedRun) -> dict[str, float]:
    """Returns a run's test metrics, with and without seen items."""
    return {
        name: run.final[f"test_{source}_{key}"]
        for name, source, key in (
            ("test HR@10, seen items ranked", "full_with_seen", "hr@10"),
            ("test NDCG@10, seen items ranked", "full_with_seen", "ndcg@10"),
            ("test HR@10", "full", "hr@10"),
            ("test NDCG@10", "full", "ndcg@10"),
        )
    }


def recbole_rankings(epoch: dict[str, float]) -> dict[str, float]:
    """Returns the metrics of RecBole's test after an epoch."""
    return {
        "test HR@10, seen items ranked": epoch["test_hit@10"],
        "test NDCG@10, seen items ranked": epoch["test_ndcg@10"],
    }


def measure_quality(
    dataset: Path, inter: Path, folder: Path, options: argparse.Namespace
) -> list[Record]:
    """Measures HR@10 and NDCG@10 over all items, a sample per seed.

    Ours is evaluated at the end of training, RecBole after its best epoch. RecBole ranks the items
    of the history too, so both rankings of ours are recorded.
    """
    records = []
    threads = max(options.threads)
    for preset in options.presets:
        qualities = []
        for seed in options.seeds:
            run = train_preset(dataset, folder, preset, seed, options)
            qualities.append(our_rankings(run))
            print(preset, seed, run.losses.get(STEPS_PER_EPOCH), qualities[-1], flush=True)
        config = {"preset": preset, "epochs": options.epochs, "seeds": list(options.seeds)}
        records += quality_records(f"ours, preset {preset}", qualities, config)
    if not options.recbole_epochs:
        return records
    flags = (f"--epochs={options.recbole_epochs}", "--evaluate")
    curves = [run_recbole(inter, threads, FASTEST, *flags, seed=s)["curve"] for s in options.seeds]
    best = [max(curve, key=lambda point: point["valid_ndcg@10"]) for curve in curves]
    print(*curves, sep="\n")
    chosen = [recbole_rankings(point) for point in best]
    config = {"epochs": options.recbole_epochs, "seeds": list(options.seeds)}
    return records + quality_records(FASTEST, chosen, config)


def our_ending(run: LoggedRun) -> dict[str, float]:
    """Returns our test metrics and minutes of training."""
    best = max(run.evaluations, key=lambda metrics: metrics["full_ndcg@10"])
    return our_rankings(run) | {
        "minutes to the best validation": best["elapsed_s"] / 60,
        "minutes to the early stop": run.evaluations[-1]["elapsed_s"] / 60,
    }


def recbole_ending(curve: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns RecBole's test metrics and minutes of training.

    The minutes leave its validations out, ours include them.
    """
    best = max(curve, key=lambda metrics: metrics["valid_ndcg@10"])
    return recbole_rankings(best) | {
        "minutes to the best validation": best["training_s"] / 60,
        "minutes to the early stop": curve[-1]["training_s"] / 60,
    }


def measure_to_the_end(
    dataset: Path, inter: Path, folder: Path, options: argparse.Namespace
) -> list[Record]:
    """Trains until validation ends it; measures rankings and minutes.

    A sample per seed. RecBole stops by its own rule, after the eleventh epoch without a better
    NDCG@10; ours after as many validations. RecBole ranks the items of the history too, ours both
    ways.
    """
    records = []
    threads = max(options.threads)
    for preset in options.presets:
        endings = []
        for seed in options.seeds:
            flags = ("--resume", "--print_freq=100", "--patience=11")
            run = train_preset(dataset, folder, preset, seed, options, *flags)
            endings.append(our_ending(run))
            print(preset, seed, endings[-1], flush=True)
        config = {"preset": preset, "epochs": options.epochs, "seeds": list(options.seeds)}
        records += quality_records(f"ours, preset {preset}, to the end", endings, config)
    endings = []
    for seed in options.seeds:
        flags = ("--epochs=300", "--evaluate", f"--checkpoint={folder / f'recbole_{seed}.pt'}")
        endings.append(
            recbole_ending(run_recbole(inter, threads, FASTEST, *flags, seed=seed)["curve"])
        )
        print("RecBole", seed, endings[-1], flush=True)
    config = {"seeds": list(options.seeds)}
    return records + quality_records(f"{FASTEST}, to the end", endings, config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures speed or quality and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=recsys_data() / "ml-100k" / "u.data.gz")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--our_steps", type=int, default=STEPS_PER_EPOCH)
    parser.add_argument("--recbole_batches", type=int, default=12)
    parser.add_argument("--quality", action="store_true", help="rankings instead of speed")
    parser.add_argument("--to_the_end", action="store_true", help="rankings after an early stop")
    parser.add_argument("--presets", nargs="+", default=["recbole", "fast"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=40, help="most of our presets")
    parser.add_argument("--recbole_epochs", type=int, default=1, help="0 leaves RecBole out")
    parser.add_argument("--folder", type=Path, help="to keep the runs in; by default none are kept")
    parser.add_argument("--results", type=Path, default=RESULTS / f"{BENCHMARK}.jsonl")
    options = parser.parse_args(arguments)
    if not RECBOLE_PYTHON.is_file():
        parser.error("no environment with RecBole: `make recbole` makes it")
    measure = measure_quality if options.quality else measure_speed
    measure = measure_to_the_end if options.to_the_end else measure
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        dataset = prepare_movielens(options.data, folder / "dataset")
        inter = write_interactions(dataset, folder / "interactions")
        write_records(options.results, measure(dataset, inter, folder, options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
