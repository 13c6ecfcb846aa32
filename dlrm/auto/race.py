# SPDX-License-Identifier: Apache-2.0
"""Races candidates on the validation split, with one network each."""

import dataclasses
import os
import time
from collections.abc import Collection, Sequence

from dlrm.auto.choice import Contender
from dlrm.config import DlrmConfig
from dlrm.recipe import DlrmRecipe, join_run
from recsys.errors import DivergenceError
from recsys.train.loop import FitResult, LoopState
from recsys.train.measure import MeasureConfig
from recsys.train.recipe import PrintLine
from recsys.train.run import check_before_trials, try_out

_RACED = 0.5
"""Part of the budget that all trials together may take, in equal shares."""
_MARGIN = 0.005
"""Relative improvement of the criterion that a later trial needs: less is luck of one network."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Trial:
    """A candidate after its trial.

    Attributes:
        seconds: duration of the trial.
    """

    contender: Contender
    result: FitResult
    seconds: float

    @property
    def merit(self) -> float:
        """The criterion of the race; higher is better."""
        return self.result.state.best_metric

    @property
    def concatenates(self) -> bool:
        """Whether its networks concatenate vectors."""
        return self.contender.config.model.interaction_op == "cat"

    def __str__(self) -> str:
        """Describes the outcome."""
        metric, state = self.result.metric, self.result.state
        return (
            f"{self.contender.name}: {metric.name} {metric.text(self.merit)} at epoch "
            f"{state.best_epoch:.2f} of {state.epoch + bool(state.batch)}, {self.seconds:.0f} s"
        )


def race(
    contenders: Sequence[Contender],
    given: Collection[str],
    budget: float,
    print_line: PrintLine,
) -> tuple[str, DlrmConfig]:
    """Trains each contender with one network, then the best ones with their refinement.

    Args:
        contenders: candidates, in the order of the rule's preference.
        given: names of the settings that the user gave.
        budget: seconds for the race and the training after it.
        print_line: prints a line.

    Returns:
        (name of the best contender, settings of its run).

    Raises:
        UserError: a setting, the dataset or a file of the later run is refused.
        KeyboardInterrupt: a signal ended the race.
        DivergenceError: every contender diverged.
    """
    began, trials = time.monotonic(), list[_Trial]()
    most_s = budget * _RACED / (len(contenders) + 2 * any(each.refined for each in contenders))
    contenders[0].config.require_inputs()
    check_before_trials(contenders[0].config)

    def try_one(contender: Contender) -> None:
        try:
            trials.append(_tried(contender, most_s))
        except DivergenceError as error:
            if contender == contenders[-1] and not trials:
                raise
            print_line(f"Auto: {contender.name}: diverged ({error})")
        else:
            print_line(f"Auto: {trials[-1]}")

    for contender in contenders:
        try_one(contender)
    # Contenders that concatenate gain most from statistics and from the mean of networks.
    first = _best(trials)
    dense = _best([each for each in trials if each.concatenates] or [first])
    for trial in (first,) if dense is first else (first, dense):
        if trial.contender.refined is not None:
            try_one(trial.contender.refined)
    best = _best(trials)
    return best.contender.name, _within(best, given, budget - (time.monotonic() - began))


def _best(trials: Sequence[_Trial]) -> _Trial:
    """Returns the first trial that is as good as the best, or nearly so."""
    highest = max(trial.merit for trial in trials)
    least = highest - _MARGIN * abs(highest)
    return next(trial for trial in trials if trial.merit >= least)


def _tried(contender: Contender, most_s: float) -> _Trial:
    began, config = time.monotonic(), contender.config

    def goes_on(_: LoopState) -> bool:
        return time.monotonic() - began < most_s

    changes = {
        **dataclasses.asdict(MeasureConfig()),
        "seeds": 1,
        "eval_split": "validation",
        "save_checkpoint_path": None,
        "save_freq": None,
        "log_path": os.devnull,
        "resume": False,
    }
    trial = DlrmConfig.from_dict(config.to_dict() | changes, config.explicit - {"output_dir"})
    result = try_out(DlrmRecipe.open, trial, join_run(trial), goes_on)
    if result.reason.startswith("SIG"):
        raise KeyboardInterrupt
    return _Trial(contender, result, time.monotonic() - began)


def _within(best: _Trial, given: Collection[str], left_s: float) -> DlrmConfig:
    """Returns the settings with as many networks, and then epochs, as there is time for."""
    config, state = best.contender.config, best.result.state
    seeds, epochs = config.model.seeds, config.run.epochs
    if "seeds" not in given:
        seeds = max(min(seeds, int(left_s / best.seconds)), 1)
    if "epochs" not in given:
        of_epoch = best.seconds / max(state.epoch + bool(state.batch), 1)
        epochs = max(min(epochs, int(left_s / (of_epoch * seeds))), 1)
    changes = {"seeds": seeds, "epochs": epochs}
    return DlrmConfig.from_dict(config.to_dict() | changes, config.explicit)
