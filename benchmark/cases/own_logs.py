# SPDX-License-Identifier: Apache-2.0
"""DLRM compared with a logistic regression, LightGBM and CatBoost on public logs of many kinds.

Each log of `benchmark.own_logs` that is in the folder is prepared by its schema: the first rows
train, the next choose the step, the last are tested once. The public command lines train, test and
predict; the test itself compares with the logistic regression and LightGBM. CatBoost, if installed
(`make catboost`), is fitted to the same rows.

With --output FOLDER an interrupted run resumes at the next log: that folder keeps the figures of
finished logs until the settings, the log or the code change.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmark.case import Case, Group, Key, Values
from benchmark.commands import HERE
from benchmark.compare_predictions import read
from benchmark.machine import commit
from benchmark.own_logs.catalogue import LOGS
from benchmark.own_logs.log import OwnLog
from benchmark.own_logs.table import OTHERS, ROWS, SECONDS, best_of_others, rows_of
from benchmark.peers.catboost_trees import catboost_logits, has_catboost
from benchmark.programs import DLRM, FailedProgramError, run_module, run_training
from benchmark.record import Direction, Record
from dlrm.config import DataConfig
from dlrm.data.opened import OpenedDataset
from dlrm.train.baselines.paired import AUC, LOG_LOSS, leads_over
from dlrm.train.metrics import click_metrics
from recsys.data.manifest import Manifest
from recsys.errors import UserError
from recsys.files.durable import write_whole_file
from recsys.models.logistic.regression import Floats
from recsys.models.logistic.rows import SplitRows, spread
from recsys.settings import setting

CATBOOST = "catboost"
_METRICS = (AUC, LOG_LOSS)
_ENDS = ("", "_low", "_high")
_MOST_BEHIND = 0.002
_FIGURES = "figures.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OwnLogs(Case):
    """Public logs, one training each; with more repeats, one for each seed."""

    repeats: ClassVar[int] = 1

    logs: Path = setting(Path("logs"), "Folder of NAME.csv, as benchmark.own_logs.make writes them")
    only: tuple[str, ...] = setting((), "Names of logs (default: all in the folder)")
    preset: str = setting("auto", "Preset of the training; empty uses no preset")
    program_flags: str = setting("", "Further flags of the training, separated by spaces")

    def __post_init__(self) -> None:
        """Refuses unknown logs."""
        known = [log.name for log in LOGS.values() if log.kind != "next_item"]
        if unknown := [name for name in self.only if name not in known]:
            raise UserError(
                f"`only`: there is no log {', '.join(unknown)}; choose from {', '.join(known)}",
                setting="only",
            )

    @property
    def seeded(self) -> bool:
        """Every training run has a seed."""
        return True

    @property
    def training(self) -> list[str]:
        """Flags of the training."""
        preset = [f"--preset={self.preset}"] if self.preset else []
        return [*preset, *shlex.split(self.program_flags)]

    def config(self) -> dict[str, Any]:
        """Returns the flags of the training."""
        return {"training": " ".join(self.training)}

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the logs found in the folder, one after the other."""
        logs = [log for log in LOGS.values() if log.kind != "next_item"]
        asked = [log for log in logs if not self.only or log.name in self.only]
        there = [log for log in asked if self._file(log).is_file()]
        if absent := [log.name for log in asked if log not in there]:
            print(f"left out, not in {self.logs}: {', '.join(absent)}", flush=True)
        if not there:
            raise UserError(
                f"`logs` {self.logs} holds none of the logs; python -m benchmark.own_logs.make "
                "lists them and makes their files",
                setting="logs",
            )
        if not has_catboost():
            print("CatBoost is left out: `make catboost` installs it", flush=True)
        for log in there:
            log.check(self._file(log))
        for number, log in enumerate(there, 1):
            print(f"{number}/{len(there)} {log.name}", flush=True)
            measure = functools.partial(self._measure, log, folder / log.name)
            yield Group(candidates={log.name: measure})

    def judge(self, key: Key) -> tuple[Direction, str]:
        """Returns the better direction and the largest change that does not count."""
        if key.metric == SECONDS:
            return "lower", "20%"
        is_loss = any(key.metric.endswith(LOG_LOSS + end) for end in _ENDS)
        return "lower" if is_loss else "higher", f"{_MOST_BEHIND}"

    def fault(self, records: Sequence[Record]) -> str:
        """Names the logs on which another model is clearly better, by more than `_MOST_BEHIND`."""
        behind = []
        for name, row in rows_of(records).items():
            best = best_of_others(row, AUC)
            if best and best.lead.outcome == "behind" and best.lead.value < -_MOST_BEHIND:
                behind.append(f"{name} ({best.lead.baseline})")
        return f"behind by more than {_MOST_BEHIND} AUC on {', '.join(behind)}" if behind else ""

    def _file(self, log: OwnLog) -> Path:
        return self.logs / f"{log.name}.csv"

    def _measure(self, log: OwnLog, folder: Path, seed: int) -> Values:
        """Measures a log, or reuses the figures of an earlier run if they are still valid."""
        run = folder / f"seed_{seed}"
        asked = self._identity(log)
        if (found := _kept(run / _FIGURES, asked)) is None:
            shutil.rmtree(run, ignore_errors=True)
            try:
                found = self._figures(log, run, seed)
            except FailedProgramError as error:
                print(f"{log.name}: {error}", file=sys.stderr, flush=True)
                return {Key(log.name, AUC): math.nan}
            write_whole_file(run / _FIGURES, json.dumps({"of": asked, "figures": found}, indent=1))
        else:
            print(f"{log.name}: measured before, in {run}", flush=True)
        return {Key(log.name, n, "s" if n == SECONDS else ""): v for n, v in found.items()}

    def _identity(self, log: OwnLog) -> dict[str, Any]:
        """Returns everything that the figures of a log depend on."""
        peers = [name for name in OTHERS if importlib.util.find_spec(name)]
        return {
            "training": self.training,
            "log": log.sha256,
            "schema": hashlib.sha256(log.schema.read_bytes()).hexdigest(),
            "commit": commit(HERE),
            "peers": {name: importlib.metadata.version(name) for name in peers},
        }

    def _figures(self, log: OwnLog, run: Path, seed: int) -> dict[str, float]:
        """Trains and tests on a log; returns our figures and those of the other models."""
        dataset, checkpoint = run / "dataset", run / "checkpoint"
        _print_progress(log, "preparing")
        given = (f"--input={self._file(log)}", f"--schema={log.schema}", f"--output={dataset}")
        run_module("preproc.clicks", *given, "--progress=none")
        _print_progress(log, "training")
        of_dataset = f"--dataset={dataset}"
        chosen = ("--eval_split=validation", f"--save_checkpoint_path={checkpoint}")
        started = time.perf_counter()
        flags = ("--mode=train", of_dataset, *chosen, "--baselines=", f"--seed={seed}")
        run_training(DLRM, *flags, *self.training, log=run / "train.json")
        seconds = time.perf_counter() - started
        _print_progress(log, "testing against the baselines")
        trained = (of_dataset, f"--load_checkpoint_path={checkpoint}", "--eval_split=test")
        logged = run_training(DLRM, "--mode=test", *trained, log=run / "test.json")
        predictions = run / "predictions.parquet"
        where = (f"--predictions={predictions}", f"--log_path={run / 'predict.json'}")
        run_module(DLRM, "--mode=predict", *trained, *where)
        rows = Manifest.load(dataset).rows["train"]
        figures = {ROWS: rows, **{name: logged[name] for name in _METRICS}, SECONDS: seconds}
        for name in OTHERS:
            if f"{name}_{AUC}" in logged:
                figures |= {f"{name}_{metric}": logged[f"{name}_{metric}"] for metric in _METRICS}
                leads = [f"lead_{name}_{metric}{end}" for metric in _METRICS for end in _ENDS]
                figures |= {lead: logged[lead] for lead in leads}
        if has_catboost():
            _print_progress(log, "fitting CatBoost")
            figures |= _beside_catboost(dataset, *read(predictions))
        return figures


def _print_progress(log: OwnLog, what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {log.name}: {what}", flush=True)


def _kept(file: Path, asked: Mapping[str, Any]) -> dict[str, float] | None:
    """Returns the figures that a run with the same settings left, or None."""
    if not file.is_file():
        return None
    kept = json.loads(file.read_text())
    figures: dict[str, float] = kept["figures"]
    return figures if kept["of"] == asked else None


def _beside_catboost(dataset: Path, labels: Any, ours: Floats) -> dict[str, float]:
    """Returns the metrics of CatBoost, and by how much ours differ."""
    opened = OpenedDataset.open(DataConfig(dataset=str(dataset)), num_numerical=0)
    train, validation, test = (
        SplitRows.read(reader, spread(0, reader.num_rows, reader.num_rows))
        for reader in map(opened.rows, ("train", "validation", "test"))
    )
    logits = catboost_logits(train, validation, test, torch.get_num_threads())
    metrics = click_metrics(torch.from_numpy(logits), torch.from_numpy(labels))
    figures = {f"{CATBOOST}_{metric}": float(getattr(metrics, metric)) for metric in _METRICS}
    for lead in leads_over(CATBOOST, logits, ours, labels):
        values = zip(_ENDS, (lead.value, lead.low, lead.high), strict=True)
        figures |= {f"lead_{CATBOOST}_{lead.metric}{end}": value for end, value in values}
    return figures


CASE = OwnLogs
