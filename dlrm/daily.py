# SPDX-License-Identifier: Apache-2.0
"""Trains on the days of a dataset that grows, one after the other.

Each day is a run of its own in the same folder: it continues from the checkpoint of the day before,
with tables that have grown. So training day by day gives the same parameters as training on all
days at once, and a day that was interrupted is resumed like any run.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlrm.config import DlrmConfig
from dlrm.recipe import DlrmRecipe
from dlrm.train.checkpoint import DAYS, ROWS
from recsys.data.growing.days import day_folder, open_days
from recsys.data.manifest import Manifest
from recsys.errors import UserError
from recsys.train.checkpoint import Checkpoint, CheckpointError, named_checkpoint, read_checkpoint
from recsys.train.loop import FitResult, LoopState
from recsys.train.processes import Processes
from recsys.train.recipe import PrintLine
from recsys.train.run import Run


def train_days(
    config: DlrmConfig,
    print_line: PrintLine,
    joined: contextlib.AbstractContextManager[Processes],
) -> FitResult | None:
    """Trains on every day that the run's folder has not finished.

    Returns:
        The result of the last day; None if all days were finished before.

    Raises:
        UserError: a setting, a day or the checkpoint is refused.
        DivergenceError: the model learns nothing.
    """
    root = config.data.folder
    days = open_days(root, "dataset")
    result: FitResult | None = None
    with joined as processes:
        if processes.world_size > 1:
            raise UserError("`grow` trains on one process; run it without torchrun", setting="grow")
        remaining = _remaining(config, days)
        if not remaining:
            print_line(
                f"All days of {root} are trained on, up to {day_folder(root, max(days)).name}"
            )
        for number in remaining:
            print_line(f"{day_folder(root, number).name} ({number - min(days) + 1} of {len(days)})")
            result = _train_day(_of_day(config, root, number, days[number]), print_line, processes)
            config = dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))
            if result.reason.startswith("SIG"):
                return result
        for line in _table(config):
            print_line(line)
    return result


def _train_day(config: DlrmConfig, print_line: PrintLine, processes: Processes) -> FitResult:
    run = Run.start(DlrmRecipe.open, config, print_line, processes)
    with contextlib.closing(run.log):
        return run.fit()


def _table(config: DlrmConfig) -> list[str]:
    """Returns the tests of all days, one per line; none without `progressive`."""
    folder = config.checkpoint_folder
    latest = None if folder is None else named_checkpoint(folder, "latest")
    days = [] if latest is None else read_checkpoint(latest).state.get(DAYS, [])
    head = f"{'day':<12}{'rows':>12}{'clicks':>9}{'AUC':>9}{'log loss':>10}{'calibration':>13}"
    return [head] * bool(days) + [
        f"{day['day']:<12}{day['num_rows']:>12,}{day['base_rate']:>9.2%}{day['auc']:>9.4f}"
        f"{day['log_loss']:>10.4f}{day['calibration']:>13.4f}"
        for day in days
    ]


def _of_day(config: DlrmConfig, root: Path, number: int, manifest: Manifest) -> DlrmConfig:
    """Returns the settings of a day; without rows in the evaluation split, it is not evaluated."""
    data = dataclasses.replace(config.data, dataset=str(day_folder(root, number)))
    run = config.run
    if run.progressive or not manifest.rows.get(data.eval_split):
        run = dataclasses.replace(run, test_after=run.epochs + 1.0)
    return dataclasses.replace(config, data=data, run=run)


def _remaining(config: DlrmConfig, days: Mapping[int, Manifest]) -> list[int]:
    """Returns the days that are still to be trained on.

    Raises:
        CheckpointError: the checkpoint is ahead of the dataset, or belongs to another one.
    """
    folder = config.checkpoint_folder
    assert folder is not None
    latest = named_checkpoint(folder, "latest") if config.run.resume else None
    if latest is None:
        return list(days)
    checkpoint = read_checkpoint(latest)
    trained = checkpoint.state.get(ROWS)
    for number, manifest in days.items():
        if manifest.fingerprint == trained:
            return [day for day in days if day >= number + int(_is_finished(checkpoint))]
    first = min(days)
    earlier: list[dict[str, Any]] = days[first].history
    if earlier and earlier[-1]["fingerprint"] == trained and _is_finished(checkpoint):
        return list(days)
    raise CheckpointError(
        f"{checkpoint.path}: was trained on a day that `dataset` {config.data.folder} does not "
        "have, or not to its end; restore that day, or start a new run in another folder",
        setting="dataset",
        path=checkpoint.path,
    )


def _is_finished(checkpoint: Checkpoint) -> bool:
    return LoopState.from_dict(checkpoint.state).ended == "epochs"
