# SPDX-License-Identifier: Apache-2.0
"""Finds the length of training that fits a time budget, from a few steps on this machine."""

import dataclasses
import math
import os
import time
from collections.abc import Collection

from bert4rec.auto.choice import Choice
from bert4rec.config import Bert4RecConfig
from bert4rec.recipe import Bert4RecRecipe, join_run
from recsys.train.loop import FitResult
from recsys.train.measure import MeasureConfig
from recsys.train.run import check_before_trials, try_out

_FIRST_STEPS, _STEPS = 2, 6
"""Steps of the trial: the first ones, which are slower, and the ones that are timed."""
_VALIDATED = 0.3
"""Fraction of the time that validations may take."""
_SHORTEST = 50
"""Shortest `max_len` that the budget may reduce histories to, to make room for more steps."""


def within(
    config: Bert4RecConfig, chosen: Choice, given: Collection[str], budget: int
) -> tuple[Bert4RecConfig, str]:
    """Shortens a training that would take longer than a budget.

    The number of steps matters more than the length of histories, so `max_len` is halved first.

    Args:
        config: settings of the run.
        chosen: choice that the settings come from.
        given: names of the settings that the user gave; a given length stays.
        budget: time limit in seconds.

    Returns:
        (the settings, a line that explains them).

    Raises:
        UserError: a setting, the dataset or a file of the planned run is refused.
        KeyboardInterrupt: a signal ended the trial.
    """
    if {"max_steps", "num_epochs"} & set(given):
        return config, "the length is given, so `budget` is ignored"
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return config, "several processes train all epochs, so `budget` is ignored"
    check_before_trials(config)
    began = time.monotonic()
    halved = ""
    while True:
        pace = _Pace.of(config, chosen)
        left_s = max(budget - (time.monotonic() - began) - pace.setup_s, 0)
        fits = pace.seconds(chosen.steps, config) <= left_s
        max_len = config.model.max_len // 2
        if fits or "max_len" in given or max_len < _SHORTEST:
            break
        config = Bert4RecConfig.from_dict(config.to_dict() | {"max_len": max_len}, config.explicit)
        halved = f"`max_len` {max_len}, so that more steps fit; "
    if fits:
        return config, (
            f"{halved}{pace}: all steps, about {chosen.steps:,}, fit in `budget` {budget} s"
        )
    fit, freq = pace.within(left_s, chosen.steps, config)
    changes = {"max_steps": fit, **({} if "test_freq" in given else {"test_freq": freq})}
    shorter = Bert4RecConfig.from_dict(config.to_dict() | changes, config.explicit)
    return shorter, (
        f"{halved}{pace}: {fit:,} of about {chosen.steps:,} steps fit in `budget` {budget} s"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Pace:
    """How long parts of a training take on this machine.

    Attributes:
        step_s: seconds of a step.
        validation_s: seconds of a validation.
        setup_s: seconds before the first step.
    """

    step_s: float
    validation_s: float
    setup_s: float

    @classmethod
    def of(cls, config: Bert4RecConfig, chosen: Choice) -> "_Pace":
        """Measures the times by training a few steps."""
        began = time.monotonic()
        result = _tried(config)
        step_s = chosen.step_size / result.train_samples_per_s
        validation_s = chosen.validated / result.test_samples_per_s
        steps_s = (_FIRST_STEPS + _STEPS) * step_s + validation_s
        return cls(step_s, validation_s, max(time.monotonic() - began - steps_s, 0))

    def seconds(self, steps: int, config: Bert4RecConfig) -> float:
        """Returns the time of a training with its validations."""
        assert config.run.test_freq is not None
        return steps * self.step_s + math.ceil(steps / config.run.test_freq) * self.validation_s

    def within(self, left_s: float, steps: int, config: Bert4RecConfig) -> tuple[int, int]:
        """Returns the steps that fit into a time, and those between validations."""
        assert config.run.test_freq is not None
        most = math.ceil(steps / config.run.test_freq)
        validations = max(min(most, int(_VALIDATED * left_s / self.validation_s)), 1)
        fit = max(int((left_s - validations * self.validation_s) / self.step_s), 1)
        return fit, math.ceil(fit / validations)

    def __str__(self) -> str:
        """Returns the times in words."""
        return f"{self.step_s * 1e3:,.0f} ms a step and {self.validation_s:,.1f} s a validation"


def _tried(config: Bert4RecConfig) -> FitResult:
    changes = {
        **dataclasses.asdict(MeasureConfig()),
        "max_steps": _FIRST_STEPS + _STEPS,
        "test_freq": _FIRST_STEPS + _STEPS,
        "benchmark_warmup_steps": _FIRST_STEPS,
        "export_root": "",
        "save_freq": None,
        "log_path": os.devnull,
        "resume": False,
    }
    trial = Bert4RecConfig.from_dict(config.to_dict() | changes, config.explicit)
    result = try_out(Bert4RecRecipe.open, trial, join_run(trial))
    if result.reason.startswith("SIG"):
        raise KeyboardInterrupt
    return result


def what_was_tried(chosen: Choice, result: FitResult) -> str:
    """Describes what a run tried, for a user who is not satisfied with its result."""
    state = result.state
    best = f"{result.metric.name} {result.metric.text(state.best_metric)}"
    planned = f" of about {chosen.steps:,}" if chosen.steps else ""
    return (
        f"one choice of settings, {state.step:,}{planned} steps (ended: "
        f"{state.ended or result.reason}); the best validation, {best}, was at epoch "
        f"{state.best_epoch:.2f}. Not tried: a longer training (`budget`, `num_epochs`), other "
        "settings (recsys-recipes tune bert4rec)"
    )
