# SPDX-License-Identifier: Apache-2.0
"""The length of a training that fits a budget, by a few steps on this machine."""

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
"""Steps that are tried: the first ones, which are slower, and the ones that are measured."""
_VALIDATED = 0.3
"""Part of the time that validations may take."""


def within(
    config: Bert4RecConfig, chosen: Choice, given: Collection[str], budget: int
) -> tuple[Bert4RecConfig, str]:
    """Shortens a training that would take longer than a budget.

    Args:
        config: settings of the run.
        chosen: where they are from.
        given: names of the settings that the user gave; a given length stays.
        budget: seconds.

    Returns:
        (the settings, a line that says why).

    Raises:
        UserError: a setting or the dataset is refused, or a file of the run to be.
        KeyboardInterrupt: a signal ended the trial.
    """
    if {"max_steps", "num_epochs"} & set(given):
        return config, "the length is given, so `budget` is not looked at"
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return config, "several processes train all epochs, whatever the `budget`"
    check_before_trials(config)
    began = time.monotonic()
    result = _tried(config)
    took_s = time.monotonic() - began
    per_step = chosen.step_size / result.train_samples_per_s
    per_validation = chosen.validated / result.test_samples_per_s
    setup_s = max(took_s - (_FIRST_STEPS + _STEPS) * per_step - per_validation, 0)
    left_s = max(budget - took_s - setup_s, 0)
    steps = chosen.steps
    told = f"{per_step * 1e3:,.0f} ms a step and {per_validation:,.1f} s a validation"
    assert config.run.test_freq is not None
    validations = math.ceil(steps / config.run.test_freq)
    if steps * per_step + validations * per_validation <= left_s:
        return config, f"{told}: all of about {steps:,} steps fit in `budget` {budget} s"
    validations = max(min(validations, int(_VALIDATED * left_s / per_validation)), 1)
    fit = max(int((left_s - validations * per_validation) / per_step), 1)
    freq = config.run.test_freq if "test_freq" in given else math.ceil(fit / validations)
    changes = {"max_steps": fit, "test_freq": freq}
    shorter = Bert4RecConfig.from_dict(config.to_dict() | changes, config.explicit)
    return shorter, f"{told}: {fit:,} of about {steps:,} steps fit in `budget` {budget} s"


def _tried(config: Bert4RecConfig) -> FitResult:
    changes = {
        **dataclasses.asdict(MeasureConfig()),
        "max_steps": _FIRST_STEPS + _STEPS,
        "test_freq": _FIRST_STEPS + _STEPS,
        "benchmark_warmup_steps": _FIRST_STEPS,
        "export_root": "",
        "log_path": os.devnull,
        "resume": False,
    }
    trial = Bert4RecConfig.from_dict(config.to_dict() | changes, config.explicit)
    result = try_out(Bert4RecRecipe.open, trial, join_run(trial))
    if result.reason.startswith("SIG"):
        raise KeyboardInterrupt
    return result


def what_was_tried(chosen: Choice, result: FitResult) -> str:
    """Tells in words what a run tried, for a reader whom its verdict does not please."""
    state = result.state
    best = f"{result.metric.name} {result.metric.text(state.best_metric)}"
    planned = f" of about {chosen.steps:,}" if chosen.steps else ""
    return (
        f"one choice of settings, {state.step:,}{planned} steps (ended: "
        f"{state.ended or result.reason}); the best validation, {best}, was at epoch "
        f"{state.best_epoch:.2f}. Not tried: a longer training (`budget`, `num_epochs`), other "
        "settings (recsys-recipes tune bert4rec)"
    )
