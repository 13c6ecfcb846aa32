# SPDX-License-Identifier: Apache-2.0
"""Searches settings of a model on its validation split.

    python -m recsys_recipes.tune bert4rec --study data/study.db --search lr=1e-4..1e-2 ...

A trial trains with one choice of values for the searched settings; all other flags are those of the
training. Optuna's TPE (Bergstra et al. 2011) chooses values by the best validation of the trials
so far. A trial whose validations lag behind the median of the others is given up. One seed may be
lucky, so the best few trials are trained with further seeds, and the mean decides between them.
Nothing reads the test split. With the preset `auto`, its candidates are the first trials. The same
command continues a study and restarts an interrupted trial. Optuna's own tools can read the file.
"""

import contextlib
import dataclasses
import difflib
import fcntl
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from recsys.errors import DivergenceError, UserError
from recsys.flags import values_from_flags
from recsys.program import new_flags, print_line, run_command, setting_named
from recsys.settings import (
    REQUIRED,
    Sections,
    joined,
    require_not_negative,
    require_positive,
    section_from_dict,
    setting,
)
from recsys_recipes.models import MODELS, ModelSpec

if TYPE_CHECKING:
    from recsys.train.loop import FitResult, LoopState

TRAINED = {name: model for name, model in MODELS.items() if model.package is not None}
"""Models that are trained by steps."""

_SEEDS = 2
"""Further seeds of each finalist."""
_SEED_VALUES = 2**31

_SQLITE = b"SQLite format 3\0"
_LOGARITHMIC = 10.0
"""Ratio of the ends of a range from which on its logarithm is searched."""

Searched = tuple[tuple[str, str], ...]
"""Name of each searched setting, and its values as text."""

Suggest = Callable[[Any, str], Any]
"""Draws a value for a setting from a trial of Optuna."""


def parse_search(texts: list[str]) -> Searched:
    """Reads texts such as `lr=1e-4..1e-2` and `dropout=0.1,0.3`.

    Raises:
        UserError: a text is neither a range nor a list.
    """
    search = []
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not (".." in values or "," in values):
            raise UserError(
                f"`search` {text}: must be NAME=LOW..HIGH or NAME=VALUE,VALUE,...", setting="search"
            )
        suggestion(values)
        search.append((setting_named(name), values))
    return tuple(search)


def suggestion(values: str) -> Suggest:
    """Returns the function that draws from a range or a list.

    Raises:
        UserError: the ends of a range are not numbers, or its low end is not below the high one.
    """
    low, dots, high = values.partition("..")
    if not dots:
        return lambda trial, name: trial.suggest_categorical(name, values.split(","))
    try:
        least, most = float(low), float(high)
    except ValueError as error:
        raise UserError(
            f"`search` {values}: the ends of a range must be numbers", setting="search"
        ) from error
    if not least < most:
        raise UserError(
            f"`search` {values}: the low end must be below the high one", setting="search"
        )
    log = least > 0 and most / least >= _LOGARITHMIC
    if low.isdecimal() and high.isdecimal():
        return lambda trial, name: trial.suggest_int(name, int(low), int(high), log=log)
    return lambda trial, name: trial.suggest_float(name, least, most, log=log)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TuneSettings:
    """Settings of this program."""

    study: Path = setting(REQUIRED, "File of the study; names of its logs begin with it")
    search: Searched = setting((), "NAME=LOW..HIGH or NAME=VALUE,VALUE,...", parse=parse_search)
    trials: int = setting(20, "Trials of the study, including earlier ones")
    finalists: int = setting(
        3,
        f"Best trials that are trained with {_SEEDS} further seeds each; the mean validation "
        "decides between them. 0 takes the best trial, whose seed may have been lucky",
    )

    def __post_init__(self) -> None:
        """Refuses a search without settings."""
        require_positive(self, "trials")
        require_not_negative(self, "finalists")
        if not self.search:
            raise UserError("`search` is needed: --search lr=1e-4..1e-2", setting="search")


SECTIONS: Sections = {TuneSettings: "tune"}


class Search:
    """A study of one model.

    Args:
        model: a model that is trained by steps.
        arguments: the command line, without the model.
        settings: settings of this program.
    """

    def __init__(self, model: ModelSpec, arguments: Sequence[str], settings: TuneSettings) -> None:
        self._model = model
        self._flags = model.flags
        self._arguments = arguments
        self._settings = settings

    def check(self) -> dict[str, Any]:
        """Returns the settings of all trials; refuses those that no trial can have.

        Raises:
            UserError: a setting is refused; the message names its flag.
        """
        flag_values = self._flag_values([])
        config = self._flags.config_from_flags(flag_values)
        if config.run.mode != "train":
            raise UserError(
                f"`mode` {config.run.mode}: trials only train; leave it out", setting="mode"
            )
        if config.checkpoint_folder is not None:
            raise UserError(
                f"`{config.folder_setting}`: trials save nothing; leave it out, and train with the "
                "best settings afterwards",
                setting=config.folder_setting,
            )
        if getattr(config.data, "eval_split", "validation") != "validation":
            raise UserError(
                "`eval_split` test would choose settings on the test split: use validation",
                setting="eval_split",
            )
        if "WORLD_SIZE" in os.environ:
            raise UserError("a trial runs in one process: start it with python, not torchrun")
        searched = {name for name, _ in self._settings.search}
        self._flags.refuse_unused(flag_values, config, searched)
        config.require_inputs()
        for name, texts in self._settings.search:
            for value in texts.split(",") if "," in texts else ():
                self._flag_values([f"--{name}={value}"])
        search = ["=".join(searched) for searched in self._settings.search]
        values: dict[str, Any] = config.to_dict() | {"search": search}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}

    def __call__(self, trial: Any) -> float:
        """Trains; returns the best validation, higher is better."""
        from optuna import TrialPruned

        values = {n: suggestion(v)(trial, n) for n, v in self._settings.search}

        def goes_on(state: "LoopState") -> bool:
            trial.report(state.best_metric, state.step)
            return not trial.should_prune()

        result = self._train(f"trial-{trial.number}", _as_flags(values), goes_on)
        state, told = result.state, _text(values)
        if result.reason.startswith("SIG"):
            print_line(f"trial {trial.number}: interrupted; the same command restarts it")
            trial.study.enqueue_trial(trial.params)
            raise KeyboardInterrupt
        best = f"{result.metric.name} {result.metric.text(state.best_metric)}"
        if result.reason == "given up":
            print_line(f"trial {trial.number}: given up, {best} after {state.step} steps, {told}")
            raise TrialPruned
        print_line(f"trial {trial.number}: {best} after {state.step} steps, {told}")
        return state.best_metric

    def score(self, trial: Any, number: int) -> float:
        """Trains the settings of a trial with another seed; returns the best validation.

        Args:
            trial: a complete trial.
            number: number of the seed, from 1.
        """
        seed = (self._config([]).run.seed + number) % _SEED_VALUES
        name = f"trial-{trial.number}-seed-{seed}"
        result = self._train(name, [*_as_flags(trial.params), f"--seed={seed}"])
        if result.reason.startswith("SIG"):
            raise KeyboardInterrupt
        return result.state.best_metric

    def first_guesses(self) -> list[dict[str, Any]]:
        """Returns values that `auto` would choose for the searched settings; [] without auto."""
        return [
            {
                name: guess
                for name, texts in self._settings.search
                if (guess := _within(texts, settings.get(name))) is not None
            }
            for settings in self._flags.settings_of_auto(self._flag_values([]))
        ]

    def _train(
        self,
        name: str,
        changes: list[str],
        goes_on: "Callable[[LoopState], bool]" = lambda _: True,
    ) -> "FitResult":
        from recsys.train.run import try_out

        recipe = self._model.recipe_module
        open_recipe = getattr(recipe, self._model.recipe).open
        changes = [f"--log_path={self._settings.study}.{name}.json", *changes]
        if (folder := self._config([]).measure.tensorboard) is not None:
            changes.append(f"--tensorboard={folder}/{name}")
        config = self._config(changes)
        return try_out(open_recipe, config, recipe.join_run(config), goes_on)

    def _config(self, changes: list[str]) -> Any:
        return self._flags.config_from_flags(self._flag_values(changes))

    def _flag_values(self, changes: list[str]) -> flags.FlagValues:
        values = new_flags(SECTIONS)
        self._flags.define_flags(values)
        for name, _ in self._settings.search:
            if name not in values:
                near = difflib.get_close_matches(name, values, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"`search` {name}: there is no such flag{hint}", setting="search")
        values(["tune", *self._arguments, *changes])
        return values


def _within(texts: str, value: Any) -> Any:
    """Returns a value as a search spells it; None if it is outside."""
    low, dots, high = texts.partition("..")
    if dots:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if is_number and float(low) <= value <= float(high) else None
    text = joined(value) if isinstance(value, (list, tuple)) else str(value)
    return text if text in texts.split(",") else None


def _as_flags(values: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _text(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def tune(search: Search, settings: TuneSettings) -> None:
    """Runs the trials that a study lacks, and prints all of them.

    Raises:
        UserError: a setting is refused, or the study was begun with other settings.
        DivergenceError: no trial was completed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UserError("tune needs Optuna: pip install 'recsys-recipes[tune]'") from error
    from recsys.files.held import HeldPath

    values = search.check()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings.study.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = HeldPath(settings.study, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR | os.O_CREAT)
    except BlockingIOError as error:
        raise UserError(
            f"`study` {settings.study}: another process is using it", setting="study"
        ) from error
    states = optuna.trial.TrialState
    with contextlib.ExitStack() as stack:
        stack.callback(held.release)
        study = _open_study(stack.enter_context(opened_storage(settings.study)), values)
        for trial in study.get_trials(states=[states.RUNNING]):  # of a process that has ended
            study.tell(trial.number, state=states.FAIL)
            study.enqueue_trial(trial.params)
        if not study.trials:
            for guess in filter(None, search.first_guesses()):
                study.enqueue_trial(guess)
        left = settings.trials - len(study.get_trials(states=[states.COMPLETE, states.PRUNED]))
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        study.pruner = optuna.pruners.MedianPruner()
        if left > 0:
            study.optimize(search, n_trials=left, catch=DivergenceError)
        complete = study.get_trials(states=[states.COMPLETE])
        if not complete:
            raise DivergenceError("every trial diverged: search lower learning rates")
        best = _decided(study, search, complete, settings.finalists)
        print_line(f"Best of {len(complete)}: {' '.join(_as_flags(best.params))}")


def _decided(study: Any, search: Search, complete: list[Any], finalists: int) -> Any:
    """Returns the best trial; finalists are compared by means over seeds, which the study keeps."""
    ranked = sorted(complete, key=lambda trial: -trial.value)
    if finalists == 0 or len(ranked) == 1:
        return ranked[0]
    means = {}
    for trial in ranked[:finalists]:
        scores = [trial.value]
        for number in range(1, _SEEDS + 1):
            key = f"trial {trial.number}, seed {number}"
            if key not in study.user_attrs:
                with contextlib.suppress(DivergenceError):
                    study.set_user_attr(key, search.score(trial, number))
            scores.append(study.user_attrs.get(key, -math.inf))  # one that diverged
        means[trial.number] = sum(scores) / len(scores)
        told = ", ".join(f"{abs(score):.6f}" for score in scores)
        print_line(f"finalist, trial {trial.number}: {told} by seed, {_text(trial.params)}")
    return max(ranked[:finalists], key=lambda trial: means[trial.number])


@contextlib.contextmanager
def opened_storage(file: Path) -> Iterator[Any]:
    """Opens the file of a study; closes its connections at the end.

    Raises:
        UserError: the file is not a study.
    """
    import optuna

    with file.open("rb") as opened:
        if opened.read(len(_SQLITE)) not in (b"", _SQLITE):
            raise UserError(f"`study` {file}: is not a study; use a new file", setting="study")
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _open_study(storage: Any, values: dict[str, Any]) -> Any:
    """Opens a study of these settings, or begins one."""
    import optuna

    file = storage.engine.url.database
    study = optuna.create_study(
        study_name="study", storage=storage, direction="maximize", load_if_exists=True
    )
    earlier = study.user_attrs.get("settings", values)
    for name in sorted(earlier.keys() | values.keys()):
        if (before := earlier.get(name)) != (now := values.get(name)):
            was, now = (" ".join(v) if isinstance(v, list) else v for v in (before, now))
            raise UserError(
                f"`study` {file}: was begun with `{name}` {was}, now it is {now}; use a new file",
                settings=("study", name),
            )
    study.set_user_attr("settings", values)
    return study


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    values, (model, *arguments) = new_flags(SECTIONS), argv[1:] or [""]
    if model in TRAINED:
        TRAINED[model].flags.define_flags(values)
    else:
        arguments = list(argv[1:])

    def run(flag_values: flags.FlagValues) -> None:
        if model not in TRAINED:
            raise UserError(f"name the model first: {' or '.join(TRAINED)}")
        given, _ = values_from_flags(flag_values, SECTIONS)
        settings = section_from_dict(TuneSettings, given)
        tune(Search(TRAINED[model], arguments, settings), settings)

    return run_command(run, values, [argv[0], *arguments], __doc__)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv))
