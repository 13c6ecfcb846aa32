# SPDX-License-Identifier: Apache-2.0
"""Compares the predictions of two models for the same rows.

    python -m benchmark.compare_predictions a.parquet b.parquet
    python -m benchmark.compare_predictions a.parquet b1.parquet b2.parquet b3.parquet

`dlrm.scripts.main --mode predict` writes the files, with the columns row, label and logit. Prints
AUC and log loss of both models, and the difference of each metric with a 95% interval. The interval
comes from a paired bootstrap, which draws rows with replacement, the same ones for both models
(Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13). It accounts for the
choice of test rows, not for the seed of the training. To average over seeds, give several files of
the second model, one per seed: the means of their metrics are compared.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import csv, parquet
from tqdm import tqdm

from benchmark.door import start
from recsys.errors import UserError
from recsys.settings import setting

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Predictions:
    """The predictions of a model, sorted once for many weighted AUCs.

    Args:
        labels: [N] bool.
        logits: [N].
    """

    def __init__(self, labels: npt.NDArray[np.bool_], logits: Floats) -> None:
        self._labels = labels
        self._order = np.argsort(logits, kind="stable")
        ordered = logits[self._order]
        self._begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self._losses = np.logaddexp(0, np.where(labels, -logits, logits))

    def auc(self, counts: Counts) -> float:
        """Returns the AUC where row i occurs counts[i] times; ties count half."""
        ordered, clicked = counts[self._order], self._labels[self._order]
        positives = np.add.reduceat(np.where(clicked, ordered, 0), self._begins)
        negatives = np.add.reduceat(np.where(clicked, 0, ordered), self._begins)
        below = np.cumsum(negatives) - negatives
        pairs = int(positives.sum()) * int(negatives.sum())
        return int((positives * (2 * below + negatives)).sum()) / 2 / pairs if pairs else np.nan

    def log_loss(self, counts: Counts) -> float:
        """Returns the mean loss where row i occurs counts[i] times, in nats."""
        return float(self._losses @ counts / counts.sum())


@dataclasses.dataclass(frozen=True, slots=True)
class MetricComparison:
    """A metric of two models.

    Attributes:
        second: value of the second model, the mean over its runs.
        low: lower end of the 95% interval of second - first.
        high: upper end of that interval.
    """

    metric: str
    first: float
    second: float
    low: float
    high: float


def compare(
    first: Predictions, seconds: Sequence[Predictions], num_rows: int, samples: int, seed: int
) -> list[MetricComparison]:
    """Compares AUC and log loss of N rows by a paired bootstrap."""
    generator = np.random.default_rng(seed)
    metrics = (Predictions.auc, Predictions.log_loss)

    def mean(metric: Callable[[Predictions, Counts], float], counts: Counts) -> float:
        return sum(metric(run, counts) for run in seconds) / len(seconds)

    differences = np.empty((samples, len(metrics)))
    for i in tqdm(range(samples), desc="bootstrap", disable=not sys.stderr.isatty()):
        counts = np.bincount(generator.integers(0, num_rows, num_rows), minlength=num_rows)
        differences[i] = [mean(metric, counts) - metric(first, counts) for metric in metrics]
    once = np.ones(num_rows, np.int64)
    low, high = np.nanquantile(differences, (0.025, 0.975), axis=0)
    return [
        MetricComparison(name, metric(first, once), mean(metric, once), low[i], high[i])
        for i, (name, metric) in enumerate(zip(("AUC", "log loss"), metrics, strict=True))
    ]


def read(path: Path) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Reads labels and logits, in the order of the rows.

    Raises:
        UserError: the file is missing or does not hold predictions.
    """
    wanted = ["row", "label", "logit"]
    try:
        table: Any = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
        rows, labels, logits = (table.column(name).to_numpy() for name in wanted)
        if table.column("label").null_count:
            raise ValueError("some rows have no label")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: not a file of predictions with the columns {', '.join(wanted)}, as "
            f"`--mode predict` writes it: {error}",
            path=path,
        ) from error
    if not np.array_equal(rows, np.arange(len(rows))):
        raise UserError(f"{path}: the column row must count up from 0", path=path)
    return labels.astype(bool), logits.astype(np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ComparePredictionsSettings:
    """Settings of this program."""

    samples: int = setting(1000, "Bootstrap samples to draw")
    seed: int = setting(0, "Seed of the bootstrap")


SECTIONS = {ComparePredictionsSettings: "options"}


def run(settings: ComparePredictionsSettings, files: list[str]) -> int:
    """Prints the comparison of two models; returns the exit status."""
    if len(files) < 2:
        raise UserError("name one file of the first model and at least one of the second")
    first_path, *others = map(Path, files)
    labels, logits = read(first_path)
    seconds = []
    for path in others:
        other_labels, other_logits = read(path)
        if not np.array_equal(labels, other_labels):
            raise UserError(
                f"{path}: its labels differ from those of {first_path}; predict the same rows with "
                "both models",
                path=path,
            )
        seconds.append(Predictions(labels, other_logits))
    if labels.all() or not labels.any():
        raise UserError(f"{first_path}: all labels are equal: AUC is undefined", path=first_path)
    first = Predictions(labels, logits)
    print(f"{len(labels):,} rows; second - first, with a 95% interval")
    for line in compare(first, seconds, len(labels), settings.samples, settings.seed):
        print(
            f"{line.metric:8}  {line.first:.6f}  {line.second:.6f}  "
            f"{line.second - line.first:+.6f}  [{line.low:+.6f}, {line.high:+.6f}]"
        )
    return 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start(SECTIONS, run, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
