# SPDX-License-Identifier: Apache-2.0
"""DLRM trained day by day, beside a model that stays as it was after the first day.

Each day is predicted by both models before the first one is trained on it, with the ids that a
server of that model would use: those of the day that it was trained on last. The differences have
the interval of a paired bootstrap of the day's rows. Two logs: the Criteo sample, cut into days,
and a generated one whose categories come and go and whose effects drift. The last table compares
the training of a day of a growing dataset with that of an ordinary dataset of the same rows and
tables.
"""

import dataclasses
import functools
import gzip
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmark.case import Case, Group, Key, Values
from benchmark.cases.criteo_sample import default_data
from benchmark.compare_predictions import Predictions, compare, read
from benchmark.programs import DLRM, run_module, run_training
from benchmark.record import Record
from preproc.clicks.schema.row_format import NUM_CATEGORICAL, NUM_NUMERICAL
from recsys.data.growing.days import day_folder
from recsys.errors import UserError
from recsys.settings import require_positive, setting

FLAGS = ("--preset=daily", "--baselines=", "--base_device=cpu")
_LIMIT = "--frequency_limit=2"
_SAMPLES = 1000
_LOWER = "from (95%)"
_CHURN = 0.15
"""Share of a generated log's categories that are replaced each day."""
_DRIFT = 0.07
"""Standard deviation of the daily change of a category's effect, in logits."""


def write_drifting_days(folder: Path, days: int, rows: int) -> list[Path]:
    """Writes days of a log in Criteo's format.

    A category has an effect on the logit that changes a little every day, and a day replaces some
    of the categories by new ones.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    sizes = np.geomspace(4, 2000, NUM_CATEGORICAL).astype(int)
    names = [rng.integers(0, 2**32, size) for size in sizes]
    effects = [rng.normal(0, 0.5, size) for size in sizes]
    paths = []
    for day in range(days):
        for feature, size in enumerate(sizes if day else ()):
            leaves = rng.random(size) < _CHURN
            names[feature][leaves] = rng.integers(0, 2**32, leaves.sum())
            effects[feature] += rng.normal(0, _DRIFT, size)
            effects[feature][leaves] = rng.normal(0, 0.5, leaves.sum())
        chosen = [np.minimum(rng.zipf(1.2, rows) - 1, size - 1) for size in sizes]
        logit = sum(effect[which] for effect, which in zip(effects, chosen, strict=True)) - 1.0
        clicks = rng.random(rows) < 1 / (1 + np.exp(-np.asarray(logit)))
        numbers = rng.integers(0, 50, (rows, NUM_NUMERICAL))
        categories = [name[which] for name, which in zip(names, chosen, strict=True)]
        table = zip(
            clicks.astype(int).tolist(),
            numbers.tolist(),
            zip(*categories, strict=True),
            strict=True,
        )
        paths.append(folder / f"log_{day}")
        with paths[-1].open("w") as log:
            for click, integers, ids in table:
                fields = [str(click), *map(str, integers), *(f"{each:08x}" for each in ids)]
                log.write("\t".join(fields) + "\n")
    return paths


def write_sample_days(folder: Path, days: int) -> list[Path]:
    """Cuts the Criteo sample into days, in its order.

    Raises:
        UserError: the sample is missing.
    """
    data = default_data()
    if not data.is_file():
        raise UserError(f"{data} does not exist; set RECSYS_DATA to the folder of real data")
    with gzip.open(data) as file:
        lines = file.readlines()
    folder.mkdir(parents=True)
    paths = []
    for day, part in enumerate(np.array_split(np.arange(len(lines)), days)):
        paths.append(folder / f"log_{day}")
        paths[-1].write_bytes(b"".join(lines[part[0] : part[-1] + 1]))
    return paths


def add_day(days: Path, log: Path) -> None:
    """Adds a day to a growing dataset; the first one sets the frequency limit."""
    first = () if days.is_dir() else (_LIMIT,)
    run_module("preproc.clicks", f"--extend={days}", f"--input={log}", *first)


def train(days: Path, folder: Path, *flags: str) -> Mapping[str, Any]:
    """Trains on the days that are new; returns the figures of the log."""
    saved = (f"--save_checkpoint_path={folder}", "--resume", "--grow", *FLAGS)
    return run_training(DLRM, "--mode=train", f"--dataset={days}", *saved, *flags)


def logits_of(log: Path, trained_on: Path, folder: Path, work: Path) -> Predictions:
    """Predicts a day with a model and the ids of the day that it was trained on last."""
    shutil.rmtree(work, ignore_errors=True)
    rows, predictions = work / "rows", work / "predictions.parquet"
    of_ids = f"--dictionaries={trained_on}"
    run_module("preproc.clicks", f"--input={log}", f"--output={rows}", of_ids)
    prediction = ("--mode=predict", f"--dataset={rows}", f"--predictions={predictions}")
    run_module(DLRM, *prediction, f"--load_checkpoint_path={folder}")
    return Predictions(*read(predictions))


def follow(name: str, logs: list[Path], folder: Path) -> Values:
    """Returns both models' metrics for each day from the third on."""
    days, daily, static = folder / "days", folder / "daily", folder / "static"
    values: dict[Key, float] = {}
    for number, log in enumerate(logs):
        if number > 1:  # on day 1 both are the same model
            before = day_folder(days, number - 1)
            models = ((day_folder(days, 0), static), (before, daily))
            of_static, of_daily = (logits_of(log, *model, folder / "work") for model in models)
            rows = sum(1 for _ in log.open("rb"))
            auc, loss = compare(of_static, [of_daily], rows, _SAMPLES, 0)
            row = f"{name}, day {number}"
            values |= {
                Key(row, "static AUC"): auc.first,
                Key(row, "daily AUC"): auc.second,
                Key(row, "difference"): auc.second - auc.first,
                Key(row, _LOWER): auc.low,
                Key(row, "to (95%)"): auc.high,
                Key(row, "static log loss"): loss.first,
                Key(row, "daily log loss"): loss.second,
            }
        add_day(days, log)
        train(days, daily)
        if number == 0:
            shutil.copytree(daily, static)
    return values


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Daily(Case):
    """Daily training beside a static model, and the cost of growing."""

    repeats: ClassVar[int] = 3
    lower: ClassVar[frozenset[str]] = frozenset(
        ("static log loss", "daily log loss", "ratio of seconds")
    )

    days: int = setting(7, "Days of each log")
    rows: int = setting(20_000, "Rows of a generated day")
    rows_of_cost: int = setting(400_000, "Rows of each of the three days that cost is measured on")

    def __post_init__(self) -> None:
        """Refuses counts below one."""
        require_positive(self, "days", "rows", "rows_of_cost")

    def config(self) -> dict[str, Any]:
        """Returns the flags of the training."""
        return {"preprocessing": _LIMIT, "DLRM": " ".join(FLAGS)}

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the logs, then the cost."""
        logs = {
            "drifting log": write_drifting_days(folder / "drift", self.days, self.rows),
            "Criteo sample": write_sample_days(folder / "sample", self.days),
        }
        candidates = {
            name: lambda _seed, name=name, paths=paths: follow(name, paths, folder / name)
            for name, paths in logs.items()
        }
        yield Group(candidates=candidates, once=True)
        yield self._cost(folder / "cost")

    def _cost(self, folder: Path) -> Group:
        """Returns the last day's training, with tables that grow and as an ordinary run."""
        run_module("preproc.generate_criteo", f"--output={folder / 'raw'}", "--days=3",
                   f"--rows={3 * self.rows_of_cost}")  # fmt: skip
        logs = sorted((folder / "raw").glob("day_*"))
        days, last = folder / "days", day_folder(folder / "days", len(logs) - 1)
        for number, log in enumerate(logs):
            add_day(days, log)
            if number == len(logs) - 2:
                train(days, folder / "before")

        def measure(name: str, _seed: int) -> Values:
            run = folder / "run"
            shutil.rmtree(run, ignore_errors=True)
            began = time.perf_counter()
            if name == "growing":
                shutil.copytree(folder / "before", run)
                began = time.perf_counter()
                figures = train(days, run)
            else:
                ordinary = ("--mode=train", f"--dataset={last}", "--test_after=9", *FLAGS)
                figures = run_training(DLRM, *ordinary, f"--save_checkpoint_path={run}")
            return {
                Key(name, "training", "samples/s"): figures["average_train_throughput"],
                Key(name, "whole run", "s"): time.perf_counter() - began,
            }

        def derive(values: Mapping[str, Values]) -> Values:
            rates, seconds = (
                [values[name][Key(name, *key)] for name in ("growing", "ordinary")]
                for key in (("training", "samples/s"), ("whole run", "s"))
            )
            return {
                Key("growing / ordinary", "ratio of throughput"): rates[0] / rates[1],
                Key("growing / ordinary", "ratio of seconds"): seconds[0] / seconds[1],
            }

        names = ("growing", "ordinary")
        measures = {name: functools.partial(measure, name) for name in names}
        return Group(candidates=measures, derive=derive)

    def fault(self, records: Sequence[Record]) -> str:
        """Reports a drifting log on whose last day daily training does not help."""
        row = f"drifting log, day {self.days - 1}"
        low = next(r.value for r in records if (r.candidate, r.metric) == (row, _LOWER))
        return "" if low is not None and low > 0 else f"{row}: daily training does not help"


CASE = Daily
