# SPDX-License-Identifier: Apache-2.0
"""Searches settings of a model by its validation split.

    python -m recsys_recipes.tune bert4rec --study data/study.db --search lr=1e-4..1e-2 ...

A trial is a training with values of the searched settings; all other flags are those of the
training. Optuna's TPE (Bergstra et al. 2011) chooses values by the best validation of the trials so
far; nothing reads the test split. The same command goes on with a study, and a trial that was
interrupted begins anew. Optuna's own tools read the file.
"""

import contextlib
import dataclasses
import difflib
import fcntl
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from recsys.errors import DivergenceError, UserError
from recsys.flags import values_from_flags
from recsys.program import new_flags, print_line, run_command
from recsys.settings import REQUIRED, Sections, require_positive, section_from_dict, setting

MODELS = {"bert4rec": "Bert4RecRecipe", "dlrm": "DlrmRecipe"}
"""Package of each model, and the class of its recipe."""

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
            raise UserError(f"`search` {text}: must be NAME=LOW..HIGH or NAME=VALUE,VALUE,...")
        suggestion(values)
        search.append((name, values))
    return tuple(search)


def suggestion(values: str) -> Suggest:
    """Returns the function that draws from a range or a list.

    Raises:
        UserError: the ends of a range are no numbers, or its low end is not below the high one.
    """
    low, dots, high = values.partition("..")
    if not dots:
        return lambda trial, name: trial.suggest_categorical(name, values.split(","))
    try:
        least, most = float(low), float(high)
    except ValueError as error:
        raise UserError(f"`search` {values}: the ends of a range must be numbers") from error
    if not least < most:
        raise UserError(f"`search` {values}: the low end must be below the high one")
    log = least > 0 and most / least >= _LOGARITHMIC
    if low.isdecimal() and high.isdecimal():
        return lambda trial, name: trial.suggest_int(name, int(low), int(high), log=log)
    return lambda trial, name: trial.suggest_float(name, least, most, log=log)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TuneSettings:
    """Settings of this program."""

    study: Path = setting(REQUIRED, "File of the study, and beginning of the names of its logs")
    search: Searched = setting((), "NAME=LOW..HIGH or NAME=VALUE,VALUE,...", parse=parse_search)
    trials: int = setting(20, "Trials of the study, earlier ones included")

    def __post_init__(self) -> None:
        """Refuses a search for nothing."""
        require_positive(self, "trials")
        if not self.search:
            raise UserError("`search` is needed: --search lr=1e-4..1e-2")


SECTIONS: Sections = {TuneSettings: "tune"}


class Search:
    """A study of one model.

    Args:
        model: a key of `MODELS`.
        arguments: the command line, without the model.
        settings: of this program.
    """

    def __init__(self, model: str, arguments: Sequence[str], settings: TuneSettings) -> None:
        self._model = model
        self._flags = importlib.import_module(f"{model}.scripts.flags")
        self._arguments = arguments
        self._settings = settings

    def check(self) -> dict[str, Any]:
        """Returns the settings of all trials; refuses those that none can have.

        Raises:
            UserError: names the flag.
        """
        config = self._config([])
        if config.run.mode != "train":
            raise UserError(f"`mode` {config.run.mode}: trials train; leave it out")
        if config.checkpoint_folder is not None:
            raise UserError(
                f"`{config.folder_setting}`: trials save nothing; train with the best settings then"
            )
        if getattr(config.data, "eval_split", "validation") != "validation":
            raise UserError("`eval_split` test would choose by the test split: take validation")
        if "WORLD_SIZE" in os.environ:
            raise UserError("trials are of one process: start this by python, not by torchrun")
        config.require_inputs()
        search = ["=".join(searched) for searched in self._settings.search]
        values: dict[str, Any] = config.to_dict() | {"search": search}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}

    def __call__(self, trial: Any) -> float:
        """Trains; returns the best validation, higher is better."""
        from recsys.train.run import try_out

        recipe = importlib.import_module(f"{self._model}.recipe")
        open_recipe = getattr(recipe, MODELS[self._model]).open
        values = {n: suggestion(v)(trial, n) for n, v in self._settings.search}
        log = f"{self._settings.study}.trial-{trial.number}.json"
        config = self._config([f"--log_path={log}", *_as_flags(values)])
        result = try_out(open_recipe, config, recipe.join_run(config))
        if result.reason.startswith("SIG"):
            print_line(f"trial {trial.number}: interrupted; the same command begins it anew")
            trial.study.enqueue_trial(trial.params)
            raise KeyboardInterrupt
        best = result.state.best_metric
        text = f"{result.metric.name} {result.metric.text(best)}"
        print_line(f"trial {trial.number}: {text} after {result.state.step} steps, {_text(values)}")
        return best

    def _config(self, changes: list[str]) -> Any:
        values = new_flags(SECTIONS)
        self._flags.define_flags(values)
        for name, _ in self._settings.search:
            if name not in values:
                near = difflib.get_close_matches(name, values, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"`search` {name}: there is no such flag{hint}")
        values(["tune", *self._arguments, *changes])
        return self._flags.config_from_flags(values)


def _as_flags(values: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _text(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def tune(search: Search, settings: TuneSettings) -> None:
    """Runs the trials that a study lacks, and prints all of them.

    Raises:
        UserError: a setting is refused, or the study is of other settings.
        DivergenceError: no trial came to its end.
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
        raise UserError(f"`study` {settings.study}: another process works on it") from error
    states = optuna.trial.TrialState
    with contextlib.ExitStack() as stack:
        stack.callback(held.let_go)
        study = _open_study(stack.enter_context(opened_storage(settings.study)), values)
        for trial in study.get_trials(states=[states.RUNNING]):  # of a process that is gone
            study.tell(trial.number, state=states.FAIL)
            study.enqueue_trial(trial.params)
        left = settings.trials - len(study.get_trials(states=[states.COMPLETE]))
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        if left > 0:
            study.optimize(search, n_trials=left, catch=DivergenceError)
        complete = study.get_trials(states=[states.COMPLETE])
        if not complete:
            raise DivergenceError("every trial diverged: search lower rates")
        print_line(f"Best of {len(complete)}: {' '.join(_as_flags(study.best_params))}")


@contextlib.contextmanager
def opened_storage(file: Path) -> Iterator[Any]:
    """Opens the file of a study; closes its connections at the end.

    Raises:
        UserError: it is another file.
    """
    import optuna

    with file.open("rb") as opened:
        if opened.read(len(_SQLITE)) not in (b"", _SQLITE):
            raise UserError(f"`study` {file}: is another file; take a new one")
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
                f"`study` {file}: was begun with `{name}` {was}, now it is {now}; take a new file"
            )
    study.set_user_attr("settings", values)
    return study


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    values, (model, *arguments) = new_flags(SECTIONS), argv[1:] or [""]
    if model in MODELS:
        importlib.import_module(f"{model}.scripts.flags").define_flags(values)
    else:
        arguments = list(argv[1:])

    def run(flag_values: flags.FlagValues) -> None:
        if model not in MODELS:
            raise UserError(f"name the model first: {' or '.join(MODELS)}")
        given, _ = values_from_flags(flag_values, SECTIONS)
        settings = section_from_dict(TuneSettings, given)
        tune(Search(model, arguments, settings), settings)

    return run_command(run, values, [argv[0], *arguments], __doc__)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv))
