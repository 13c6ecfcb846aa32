# SPDX-License-Identifier: Apache-2.0
"""Compares DLRM with logistic regression on 100,000 rows of Criteo Kaggle.

    python -m benchmark.dlrm.criteo_sample --data .../criteo_kaggle/sample_100k.tsv.gz

The first 80,000 rows train, the next 10,000 choose settings, the last 10,000 are tested once. The
DLRM settings below were chosen on the validation rows; each seed runs the public command lines.
"""

import argparse
import dataclasses
import gzip
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.configurations import recsys_data
from benchmark.dlrm.program import run_dlrm
from benchmark.peers import logistic_regression
from benchmark.record import RESULTS, Direction, Record, make_record, write_records

SPLIT = (80_000, 90_000, 100_000)
PREPROCESSING = ("--preset=kaggle", "--frequency_limit=4", "--split_fractions=0.8,0.1,0.1")
DLRM_FLAGS = (
    "--embedding_dim=16",
    "--bottom_mlp_sizes=64,16",
    "--top_mlp_sizes=64,1",
    "--batch_size=128",
    "--drop_last",
    "--epochs=1",
    "--optimizer=rowwise_adagrad",
    "--lr=0.018",
    "--embedding_weight_decay=0.0005",
    "--warmup_steps=0",
    "--decay_steps=0",
    "--print_freq=100",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Quality:
    """Metrics of a model on the test rows."""

    auc: float
    log_loss: float


def default_data() -> Path:
    """Returns the file of the sample in $RECSYS_DATA, else in ../shared/data."""
    return recsys_data() / "criteo_kaggle" / "sample_100k.tsv.gz"


def prepare(data: Path, dataset: Path) -> None:
    """Prepares the dataset from the raw rows."""
    arguments = (f"--input={data}", f"--output={dataset}", *PREPROCESSING)
    print(f"$ python -m preproc.criteo {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "preproc.criteo", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def train_dlrm(dataset: Path, folder: Path, seed: int) -> Quality:
    """Trains a DLRM with one seed; returns its test metrics."""
    checkpoint = folder / f"seed_{seed}"
    training = (
        "--mode=train",
        f"--dataset={dataset}",
        f"--seed={seed}",
        "--eval_split=validation",
        f"--save_checkpoint_path={checkpoint}",
        *DLRM_FLAGS,
    )
    test = ("--mode=test", f"--dataset={dataset}", f"--load_checkpoint_path={checkpoint}")
    for arguments in (training, test):
        print(f"$ python -m dlrm.scripts.main {shlex.join(arguments)}", flush=True)
    run_dlrm(*training)
    final = run_dlrm(*test)
    return Quality(final["auc"], final["log_loss"])


def fit_logistic_regression(data: Path) -> Quality:
    """Fits logistic regression; returns its test metrics."""
    from sklearn.metrics import log_loss, roc_auc_score

    with gzip.open(data) as file:
        lines = file.read().splitlines()
    if len(lines) != SPLIT[-1]:
        raise SystemExit(f"{data}: {len(lines)} rows, expected {SPLIT[-1]}")
    labels = np.array([line[:1] == b"1" for line in lines])
    features = logistic_regression.hashed_features(lines)
    first, second, _ = SPLIT
    fitted = logistic_regression.fit(
        features[:first],
        features[first:second],
        features[second:],
        (labels[:first], labels[first:second]),
    )
    print(f"logistic regression: inverse penalty {fitted.inverse_penalty}", flush=True)
    return Quality(
        float(roc_auc_score(labels[second:], fitted.test_probabilities)),
        float(log_loss(labels[second:], fitted.test_probabilities)),
    )


def records(candidate: str, qualities: Sequence[Quality], config: dict[str, Any]) -> list[Record]:
    """Makes records of mean metrics over seeds and of the AUC's range."""
    aucs = [quality.auc for quality in qualities]
    metrics: tuple[tuple[str, float, Direction], ...] = (
        ("mean test AUC", float(np.mean(aucs)), "higher"),
        ("lowest", min(aucs), "higher"),
        ("highest", max(aucs), "higher"),
        ("mean test log loss", float(np.mean([q.log_loss for q in qualities])), "lower"),
    )
    return [
        make_record(
            "criteo_sample",
            candidate,
            metric,
            [value],
            unit="",
            direction=direction,
            config=config,
        )
        for metric, value, direction in metrics
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both models; returns 1 if DLRM's AUC is no better."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=default_data(), help="the gzipped sample")
    parser.add_argument("--seeds", type=int, default=5, help="DLRM runs, with seeds 1, 2, ...")
    parser.add_argument("--results", type=Path, default=RESULTS / "criteo_sample.jsonl")
    options = parser.parse_args(arguments)
    if not options.data.is_file():
        parser.error(f"{options.data} is not there; --data names the sample (see docs)")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(options.data, folder / "dataset")
        qualities = [
            train_dlrm(folder / "dataset", folder, seed) for seed in range(1, options.seeds + 1)
        ]
    baseline = fit_logistic_regression(options.data)
    aucs, losses = [q.auc for q in qualities], [q.log_loss for q in qualities]
    print(
        f"DLRM: mean test AUC {np.mean(aucs):.4f} (seeds: "
        f"{', '.join(f'{a:.4f}' for a in aucs)}), mean log loss {np.mean(losses):.4f}\n"
        f"logistic regression: test AUC {baseline.auc:.4f}, log loss {baseline.log_loss:.4f}"
    )
    config = {
        "preprocessing": " ".join(PREPROCESSING),
        "DLRM": " ".join(DLRM_FLAGS),
    }
    write_records(
        options.results,
        [
            *records(f"DLRM, {options.seeds} seeds", qualities, config),
            *records("logistic regression, hashed features", [baseline], config),
        ],
    )
    return int(np.mean(aucs) <= baseline.auc)


if __name__ == "__main__":
    sys.exit(main())
