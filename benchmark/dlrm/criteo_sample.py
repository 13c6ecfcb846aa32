# SPDX-License-Identifier: Apache-2.0
"""Compares DLRM with a linear model and trees on real clicks.

    python -m benchmark.dlrm.criteo_sample --data .../criteo_kaggle/sample_100k.tsv.gz

The 100,000 rows of Criteo Kaggle in order: the first 65,000 train, the next 5,000 choose settings,
the last 30,000 are tested once. The settings of DLRM (preset criteo_sample) and of the peers were
chosen on the 5,000 rows. Each seed of DLRM runs the public command lines; its best epoch by the
5,000 rows predicts. The difference from the linear model is that of the mean over the seeds, with
the interval of a paired bootstrap of the 30,000 rows. Each further variant changes one thing.

--planted trains the preset on a generated log instead, whose best reachable AUC is known.
"""

import argparse
import dataclasses
import gzip
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmark.compare_predictions import Comparison, Predictions, compare, read
from benchmark.configurations import recsys_data
from benchmark.dlrm.program import run_dlrm
from benchmark.peers import boosted_trees, logistic_regression
from benchmark.record import RESULTS, Direction, Record, make_record, write_records

TRAIN, VALIDATION, ALL = 65_000, 70_000, 100_000
BINS = "--bin_numerical"
PREPROCESSING = (
    "--preset=kaggle",
    "--frequency_limit=2",
    f"--split_rows={TRAIN},{VALIDATION - TRAIN},-1",
    BINS,
)
DLRM_FLAGS = ("--preset=criteo_sample",)

_PLANTED_ROWS = 1_500_000
_SAMPLES = 1000
_LOWER = "from (95%)"


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """One change to the preset.

    Attributes:
        name: of the change.
        preprocessing: flags that come after `PREPROCESSING`.
        training: flags that come after `DLRM_FLAGS`.
    """

    name: str
    preprocessing: tuple[str, ...] = ()
    training: tuple[str, ...] = ()


_NARROW = ("--embedding_dim=16", "--bottom_mlp_sizes=64,16")
_ONCE = ("--epochs=1", "--noreset_embeddings")
PRESET = Variant("preset criteo_sample")
VARIANTS = (
    PRESET,
    Variant("without bins of numbers", (f"--no{BINS[2:]}",)),
    Variant("one epoch", (), _ONCE),
    Variant("three epochs of the same embeddings", (), ("--noreset_embeddings",)),
    Variant("16 columns", (), _NARROW),
    Variant("16 columns, one epoch, no bins", (f"--no{BINS[2:]}",), (*_NARROW, *_ONCE)),
    Variant("ids seen once too", ("--frequency_limit=1",)),
    Variant("ids seen four times", ("--frequency_limit=4",)),
    Variant("dropout 0.2", (), ("--dropout=0.2",)),
    Variant("weight decay of MLPs 1e-4", (), ("--mlp_weight_decay=0.0001",)),
    Variant("no weight decay of embeddings", (), ("--embedding_weight_decay=0",)),
    Variant("top MLP 128-64", (), ("--top_mlp_sizes=128,64,1",)),
    Variant("DCNv2", (), ("--interaction_op=dcnv2", "--dcn_low_rank_dim=32")),
)


def default_data() -> Path:
    """Returns the file of the sample in $RECSYS_DATA, else in ../shared/data."""
    return recsys_data() / "criteo_kaggle" / "sample_100k.tsv.gz"


def prepare(data: Path, dataset: Path, *flags: str) -> None:
    """Prepares the dataset from the raw rows, with further flags."""
    arguments = (f"--input={data}", f"--output={dataset}", *PREPROCESSING, *flags)
    print(f"$ python -m preproc.criteo {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "preproc.criteo", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def predictions_of(dataset: Path, folder: Path, seed: int, flags: Sequence[str]) -> Path:
    """Trains a DLRM with one seed and predicts the test rows."""
    checkpoint, predictions = folder / f"seed_{seed}", folder / f"seed_{seed}.parquet"
    training = (
        "--mode=train",
        f"--dataset={dataset}",
        f"--seed={seed}",
        "--eval_split=validation",
        f"--save_checkpoint_path={checkpoint}",
        *DLRM_FLAGS,
        *flags,
    )
    prediction = (
        "--mode=predict",
        f"--dataset={dataset}",
        f"--load_checkpoint_path={checkpoint}",
        f"--predictions={predictions}",
    )
    for arguments in (training, prediction):
        print(f"$ python -m dlrm.scripts.main {shlex.join(arguments)}", flush=True)
        run_dlrm(*arguments)
    return predictions


def predictions_of_peers(
    lines: Sequence[bytes], labels: npt.NDArray[np.bool_]
) -> dict[str, Predictions]:
    """Fits the peers; returns their predictions for the test rows."""
    hashed = logistic_regression.hashed_features(lines)
    fitted = logistic_regression.fit(
        hashed[:TRAIN],
        hashed[TRAIN:VALIDATION],
        hashed[VALIDATION:],
        (labels[:TRAIN], labels[TRAIN:VALIDATION]),
    )
    print(f"logistic regression: inverse penalty {fitted.inverse_penalty}", flush=True)
    trees, chosen = boosted_trees.predict(
        boosted_trees.features(lines, TRAIN), labels, (TRAIN, VALIDATION)
    )
    print(f"LightGBM: {chosen}", flush=True)
    probabilities = {
        "logistic regression, binned numbers": fitted.test_probabilities,
        "LightGBM": trees,
    }
    return {
        name: Predictions(labels[VALIDATION:], np.log(p) - np.log1p(-p))
        for name, p in probabilities.items()
    }


def records(
    name: str, runs: Sequence[Predictions], linear: Predictions, config: dict[str, Any]
) -> list[Record]:
    """Records a model's metrics and its gain over the linear one."""
    rows = ALL - VALIDATION
    once = np.ones(rows, np.int64)
    aucs, losses = [r.auc(once) for r in runs], [r.log_loss(once) for r in runs]
    auc = compare(linear, runs, rows, _SAMPLES, 0)[0]
    metrics: tuple[tuple[str, float, Direction], ...] = (
        ("mean test AUC", float(np.mean(aucs)), "higher"),
        ("lowest", min(aucs), "higher"),
        ("highest", max(aucs), "higher"),
        ("mean test log loss", float(np.mean(losses)), "lower"),
        ("AUC above the linear model", auc.second - auc.first, "higher"),
        (_LOWER, auc.low, "higher"),
        ("to (95%)", auc.high, "higher"),
    )
    _print(name, aucs, losses, auc)
    return [
        make_record(
            *("criteo_sample", name, metric, [value]),
            unit="",
            direction=direction,
            config=config,
        )
        for metric, value, direction in metrics
    ]


def _print(name: str, aucs: list[float], losses: list[float], auc: Comparison) -> None:
    print(
        f"{name}: AUC {np.mean(aucs):.5f} ({', '.join(f'{a:.4f}' for a in aucs)}), log loss "
        f"{np.mean(losses):.5f}, above the linear model {auc.second - auc.first:+.5f} "
        f"[{auc.low:+.5f}, {auc.high:+.5f}]",
        flush=True,
    )


def compare_on_sample(data: Path, seeds: int, results: Path) -> int:
    """Compares all models; returns 1 if DLRM is no better."""
    with gzip.open(data) as file:
        lines = file.read().splitlines()
    if len(lines) != ALL:
        raise SystemExit(f"{data}: {len(lines)} rows, expected {ALL}")
    labels = np.array([line[:1] == b"1" for line in lines])
    peers = predictions_of_peers(lines, labels)
    linear = next(iter(peers.values()))
    config = {"preprocessing": " ".join(PREPROCESSING), "DLRM": " ".join(DLRM_FLAGS)}
    made = [
        record for name, peer in peers.items() for record in records(name, [peer], linear, config)
    ]
    write_records(results, made)
    better = False
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            prepare(data, folder / "dataset", *variant.preprocessing)
            paths = [
                predictions_of(folder / "dataset", folder, seed, variant.training)
                for seed in range(1, seeds + 1)
            ]
            logits = [read(path)[1] for path in paths]
        runs = [Predictions(labels[VALIDATION:], values) for values in logits]
        of_variant = records(f"DLRM, {variant.name}", runs, linear, config)
        write_records(results, of_variant)
        if variant is PRESET:
            better = any(r.metric == _LOWER and (r.value or 0) > 0 for r in of_variant)
            mean = np.mean([1 / (1 + np.exp(-values)) for values in logits], axis=0)
            together = Predictions(labels[VALIDATION:], np.log(mean) - np.log1p(-mean))
            name = f"DLRM, mean prediction of {seeds} seeds"
            write_records(results, records(name, [together], linear, config))
    return int(not better)


def train_on_planted(rows: int, seeds: int, results: Path) -> int:
    """Trains on a generated log; returns 1 if the AUC is low."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        raw = folder / "raw"
        command = ["preproc.generate_criteo", f"--output={raw}", f"--rows={rows}", "--days=4"]
        subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
        flags = (f"--input={raw}", f"--output={folder / 'dataset'}", "--frequency_limit=2", BINS)
        command = ["preproc.criteo", *flags, "--dictionary_days=train"]
        subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
        best = json.loads((raw / "planted.json").read_text())["best_reachable"]
        reachable = best["last_day_first_half"]["auc"]
        gaps = []
        for seed in range(1, seeds + 1):
            path = predictions_of(folder / "dataset", folder, seed, ())
            labels, logits = read(path)
            auc = Predictions(labels, logits).auc(np.ones(len(labels), np.int64))
            gaps.append(reachable - auc)
            print(f"seed {seed}: AUC {auc:.5f}, best reachable {reachable:.5f}", flush=True)
    write_records(
        results,
        [
            make_record(
                *("criteo_sample_planted", f"{rows:,} rows", "AUC below the best reachable", gaps),
                unit="AUC",
                direction="lower",
                config={"DLRM": " ".join(DLRM_FLAGS)},
                seeds=range(1, seeds + 1),
            )
        ],
    )
    return int(np.mean(gaps) > 0.005)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison, or the generated log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=default_data(), help="the gzipped sample")
    parser.add_argument("--seeds", type=int, default=5, help="DLRM runs, with seeds 1, 2, ...")
    parser.add_argument("--results", type=Path, help="file of the records")
    parser.add_argument("--planted", action="store_true", help="train on a generated log")
    parser.add_argument("--rows", type=int, default=_PLANTED_ROWS, help="rows of --planted")
    options = parser.parse_args(arguments)
    if options.planted:
        results = options.results or RESULTS / "criteo_sample_planted.jsonl"
        return train_on_planted(options.rows, options.seeds, results)
    if not options.data.is_file():
        parser.error(f"{options.data} is not there; --data names the sample (see docs)")
    results = options.results or RESULTS / "criteo_sample.jsonl"
    return compare_on_sample(options.data, options.seeds, results)


if __name__ == "__main__":
    sys.exit(main())
