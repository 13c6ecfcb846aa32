# SPDX-License-Identifier: Apache-2.0
"""Trains on the days of ratings that grow, one after the other.

Each day is a run of its own in a folder named like the day. It starts with the weights of the day
before, and with vectors of its own for the items that are new.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert4rec.config import Bert4RecConfig
from bert4rec.recipe import Bert4RecRecipe
from recsys.data.growing.days import day_folder, open_days
from recsys.errors import UserError
from recsys.train.checkpoint import named_checkpoint, read_checkpoint
from recsys.train.loop import FitResult, LoopState
from recsys.train.processes import Processes
from recsys.train.recipe import PrintLine
from recsys.train.run import Run
from recsys.train.run_log import read_run_log

_BASELINES = ("recent",)
"""Baselines of a day's test, if the user names none: some others take minutes."""
_METRICS = ("hr@10", "ndcg@10")
_OF_MODELS = {"model": "test_full_", "recent": "test_recent_"}


def train_days(
    config: Bert4RecConfig,
    print_line: PrintLine,
    joined: contextlib.AbstractContextManager[Processes],
) -> FitResult | None:
    """Trains on every day that the folder of the runs has not finished.

    Returns:
        The result of the last day; None if all days were finished before.

    Raises:
        UserError: a setting, a day or a checkpoint is refused.
        DivergenceError: the model learns nothing.
    """
    root, output = config.data.folder, config.checkpoint_folder
    assert root is not None
    assert output is not None
    numbers = list(open_days(root, "dataset_path"))
    days = [_Day(config, day_folder(root, n), day_folder(output, n)) for n in numbers]
    result: FitResult | None = None
    with joined as processes:
        if processes.world_size > 1:
            raise UserError("`grow` trains on one process; run it without torchrun", setting="grow")
        if any(day.run.is_dir() for day in days) and not config.run.resume:
            raise UserError(
                f"`export_root` {output}: has runs of {root}; add `resume` to continue them, or "
                "choose another folder",
                settings=("export_root", "resume"),
            )
        for place, (number, day) in enumerate(zip(numbers, days, strict=True), start=1):
            before = day_folder(output, number - 1)
            earlier = before if _is_finished(before) else None
            if config.run.progressive and earlier is not None and not day.metrics():
                print_line(f"{day.run.name}: tests the model of {earlier.name}")
                run = Run.start(Bert4RecRecipe.open, day.test(earlier), print_line, processes)
                with contextlib.closing(run.log):
                    run.test()
            if not _is_finished(day.run):
                print_line(f"{day.run.name} ({place} of {len(days)})")
                run = Run.start(Bert4RecRecipe.open, day.training(earlier), print_line, processes)
                with contextlib.closing(run.log):
                    result = run.fit()
                if result.reason.startswith("SIG"):
                    return result
        for line in _table(days):
            print_line(line)
    return result


@dataclasses.dataclass(frozen=True, slots=True)
class _Day:
    """The runs of a day.

    Attributes:
        config: settings of all days.
        dataset: the day.
        run: folder of its training.
    """

    config: Bert4RecConfig
    dataset: Path
    run: Path

    @property
    def _log_of_test(self) -> Path:
        return self.run.with_name(f"{self.run.name}.test.json")

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the day's test; empty without one."""
        if not self._log_of_test.is_file():
            return {}
        records = [record["data"] for record in read_run_log(self._log_of_test)]
        return next((data for data in records if "test_full_hr@10" in data), {})

    def training(self, before: Path | None) -> Bert4RecConfig:
        """Returns the settings of the training, which continues or starts from another day's."""
        is_begun = named_checkpoint(self.run, "latest") is not None
        start = self.config.run.load_checkpoint_path if before is None else str(before)
        return self._with(
            export_root=str(self.run),
            resume=is_begun,
            load_checkpoint_path=None if is_begun else start,
            log_path="",
        )

    def test(self, before: Path) -> Bert4RecConfig:
        """Returns the settings of a test of the model of the day before."""
        config = self._with(
            mode="test",
            progressive=True,
            export_root="",
            resume=False,
            save_freq=None,
            load_checkpoint_path=str(before),
            log_path=str(self._log_of_test),
        )
        if "baselines" in config.explicit:
            return config
        evaluation = dataclasses.replace(config.evaluation, baselines=_BASELINES)
        return dataclasses.replace(config, evaluation=evaluation)

    def _with(self, **changes: Any) -> Bert4RecConfig:
        run = dataclasses.replace(
            self.config.run, **{"grow": False, "progressive": False, **changes}
        )
        data = dataclasses.replace(self.config.data, dataset_path=str(self.dataset))
        return dataclasses.replace(self.config, run=run, data=data)


def _is_finished(run: Path) -> bool:
    latest = named_checkpoint(run, "latest")
    return latest is not None and bool(LoopState.from_dict(read_checkpoint(latest).state).ended)


def _table(days: Iterable[_Day]) -> list[str]:
    """Returns the tests of all days, one per line; none without `progressive`."""
    lines = []
    for day in days:
        if metrics := day.metrics():
            cells = (
                f"{metrics.get(f'{start}{metric}', math.nan):>16.4f}"
                for start in _OF_MODELS.values()
                for metric in _METRICS
            )
            users = metrics["test_users_with_targets"]
            lines.append(f"{day.run.name:<12}{users:>10,}{''.join(cells)}")
    names = (f"{name} {metric}" for name in _OF_MODELS for metric in _METRICS)
    head = f"{'day':<12}{'users':>10}{''.join(f'{name:>16}' for name in names)}"
    return [head, *lines] if lines else []
