# SPDX-License-Identifier: Apache-2.0
"""A run of any model: trains, tests or measures inference.

Models differ in their recipes, see `recsys.train.recipe`.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic

import torch
from tqdm import tqdm

from recsys.errors import DivergenceError, UserError
from recsys.interruption import SAME_REQUEST_S, StopRequest
from recsys.train.checkpoint import MANIFEST_FILE, read_checkpoint
from recsys.train.config import Config
from recsys.train.divergence import ADVICE, find_nonfinite
from recsys.train.loop import BatchT, FitResult, Loop, LoopConfig, LoopState
from recsys.train.measure.observers import step_observers, write_report
from recsys.train.measure.report import require_matplotlib
from recsys.train.measure.tensorboard import Events, import_writer
from recsys.train.measure.timing import TABLE_HEAD, InferenceLatency, measure_latency
from recsys.train.memory import keep_freed_memory
from recsys.train.optimizers.precision import resolve_device, resolve_precision, set_tf32
from recsys.train.processes import ALONE, Processes, set_threads
from recsys.train.recipe import ConfigT, Machine, PrintLine, Recipe, SavedState, Training
from recsys.train.run_log import (
    Resumed,
    RunLog,
    above_bar,
    progress_bar,
    require_log,
    require_writable,
)
from recsys.train.saving.environment import ENVIRONMENT, environment
from recsys.train.saving.run_folder import CheckpointFolder, check_new, check_writable

logger = logging.getLogger(__name__)


_CURVE_POINTS = 10
"""Number of points in the curves of a short run; it prints often enough for them."""
_NOTICE = (
    "ending after this step or test; Ctrl-C, or another signal more than "
    f"{SAME_REQUEST_S} s later, ends at once, without saving"
)


def set_up_machine(config: Config, print_line: PrintLine, processes: Processes = ALONE) -> Machine:
    """Applies the settings of the process: threads, memory, device, precision, seed.

    Args:
        print_line: prints a line; only the first process uses it.

    Raises:
        UserError: this machine lacks something that the settings require.
    """
    set_threads(config.run.num_threads, processes)
    keep_freed_memory()
    device = resolve_device(config.run.base_device)
    given = config.precision
    precision = resolve_precision(device, given.amp, given.amp_dtype, given.loss_scale)
    set_tf32(device, given.tf32)
    torch.manual_seed(config.run.seed)
    print_first = print_line if processes.is_first else lambda _line: None
    return Machine(device, precision, processes, print_first)


@dataclasses.dataclass(frozen=True, slots=True)
class Run(Generic[BatchT]):
    """A run that is set up.

    Attributes:
        recipe: recipe of the model.
        machine: device, precision and processes.
        log: log of the metrics.
    """

    recipe: Recipe[BatchT]
    machine: Machine
    log: RunLog

    @classmethod
    def start(
        cls,
        open_recipe: Callable[[ConfigT, Machine], Recipe[BatchT]],
        config: ConfigT,
        print_line: PrintLine,
        processes: Processes = ALONE,
    ) -> "Run[BatchT]":
        """Sets up the machine, opens data and log, and builds the model.

        Args:
            open_recipe: completes the settings, opens the data and builds the model.
            config: settings as the user gave them.
            processes: processes of the run; the first prints and logs.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
        """
        if processes.is_first:
            check_outputs(config)
        machine = set_up_machine(config, print_line, processes)
        return cls.of(open_recipe(config, machine), machine)

    @classmethod
    def of(
        cls, recipe: Recipe[BatchT], machine: Machine, log_class: type[RunLog] = RunLog
    ) -> "Run[BatchT]":
        """Loads the weights of an opened recipe.

        Args:
            recipe: recipe of a model that was just built.
            machine: machine of the recipe.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another model or dataset.
        """
        processes = machine.processes
        recipe.load()
        log = log_class(recipe.config.log_file if processes.is_first else None)
        for line in recipe.summary:
            machine.print_line(line)
        return cls(recipe, machine, log)

    def fit(
        self, *, then_test: bool = True, goes_on: Callable[[LoopState], bool] = lambda _: True
    ) -> FitResult:
        """Trains, evaluates and saves.

        Args:
            then_test: report the result at the end, including the test of a model that has one.
            goes_on: called after each evaluation; False ends the run.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
            DivergenceError: the model learns nothing.
        """
        config, machine, processes = self.recipe.config, self.machine, self.machine.processes
        training = self.recipe.training()
        folder = CheckpointFolder(config.checkpoint_folder) if config.checkpoint_folder else None
        steps = training.cadence.steps(training.source.num_batches)
        cadence = self._cadence(training.cadence, steps)
        with self._holding(folder), StopRequest(_NOTICE) as stop:
            state = LoopState() if folder is None else self._begin_in(folder, training)
            processes.note_training()
            is_resumed = config.run.resume or processes.is_restart
            resumed = Resumed(state.step, config.folder_setting) if is_resumed else None
            paths = {} if config.log_file is None else {"log_path": config.log_file}
            if folder is not None:
                paths[config.folder_setting] = folder.folder
            # Absolute, because the run may be resumed from another working directory.
            resolved = {name: str(path.resolve()) for name, path in paths.items()}
            self.log.begin(config.to_dict() | resolved, resumed)
            if config.measure.tensorboard is not None and processes.is_first:
                # Not earlier: a refused run would hide the curves of another one.
                folder_of_events = Path(config.measure.tensorboard)
                self.log.events = Events(folder_of_events, config.to_dict(), state.step)
            machine.print_line(training.summary())
            if folder is None:
                machine.print_line(f"Nothing will be saved without `{config.folder_setting}`")
            last = state.first_step + steps
            with progress_bar(last, state.step, processes.is_first) as bar:
                loop = self._loop(training, cadence, folder, state, bar)
                loop.goes_on = goes_on
                if folder is None and then_test:
                    loop.keep_best = training.keep_best
                result = loop.fit(stop)
            for metrics in training.report(result, folder) if then_test else ():
                self.log.record((), metrics)
            if processes.is_first:
                write_report(config, self.log)
        return result

    def _cadence(self, cadence: LoopConfig, steps: int) -> LoopConfig:
        """Returns the cadence; a short run with a report prints often enough for a curve."""
        config = self.recipe.config
        files = (config.measure.report, config.measure.tensorboard)
        if files == (None, None) or "print_freq" in config.explicit:
            return cadence
        enough = max(steps // _CURVE_POINTS, 1)
        return dataclasses.replace(cadence, print_freq=min(cadence.print_freq, enough))

    def _loop(
        self,
        training: Training[BatchT],
        cadence: LoopConfig,
        folder: CheckpointFolder | None,
        state: LoopState,
        bar: "tqdm[Any]",
    ) -> Loop[BatchT]:
        return Loop(
            config=cadence,
            schedule=training.schedule,
            step=training.step,
            source=training.source,
            evaluate=training.evaluate,
            save=None if folder is None else functools.partial(self.save, folder, training),
            log=self.log,
            device=self.machine.device,
            print_line=above_bar(self.machine.print_line),
            metric=training.metric,
            state=state,
            processes=self.machine.processes,
            bar=bar,
            observers=step_observers(self.recipe.config, self.machine, training.count),
            begin_epoch=training.begin_epoch,
        )

    @contextlib.contextmanager
    def _holding(self, folder: CheckpointFolder | None) -> Iterator[None]:
        """Locks the checkpoint folder on the first process; a refusal ends all processes."""
        processes = self.machine.processes
        with contextlib.ExitStack() as stack:
            refusal, setting = "", self.recipe.config.folder_setting
            if folder is not None and processes.is_first:
                try:
                    check_writable(folder.folder, setting)
                    stack.enter_context(folder.held(setting))
                except UserError as error:
                    refusal = str(error)
            refusal = processes.gather_values(refusal)[0]
            if refusal:
                raise UserError(refusal, setting=setting)
            if folder is not None:
                folder.check_shared(setting, processes)
            yield

    def _begin_in(self, folder: CheckpointFolder, training: Training[BatchT]) -> LoopState:
        """Refuses a folder in use, or restores its latest checkpoint.

        Returns:
            The position of the run.

        Raises:
            CheckpointError: the checkpoint is damaged, or was made with other settings or data.
        """
        config, processes = self.recipe.config, self.machine.processes
        if not config.run.resume and not processes.is_restart:
            folder.check_unused(config.folder_setting, can_resume=True)
            return LoopState()
        latest = folder.latest()
        if latest is None:
            return LoopState()
        folder.best()  # refuses a missing checkpoint now, not at the end of the training
        checkpoint = read_checkpoint(latest)
        checkpoint.check_same_settings(config.to_dict(), self.recipe.fixed)
        self.recipe.check_dataset(checkpoint)
        try:
            state = LoopState.from_dict(checkpoint.state)
        except UserError as error:
            raise UserError(f"{latest / MANIFEST_FILE}: {error}") from error
        state = training.restore(checkpoint, state)
        if processes.is_first:
            folder.remove_obsolete()  # left by a run that was killed after saving this one
        self.machine.print_line(f"Resumed from {latest} at step {state.step}")
        return state

    def save(
        self, folder: CheckpointFolder, training: Training[BatchT], state: LoopState, is_best: bool
    ) -> None:
        """Saves a checkpoint to resume from; every process must call it.

        Raises:
            DivergenceError: a value is NaN or infinite; nothing was saved.
        """
        self.log.sync()
        machine = self.machine
        here = {ENVIRONMENT: environment(machine.device, machine.processes)}
        with training.saved() as saved:
            self._require_finite(saved, state)
            folder.save(
                state.step,
                saved.groups,
                state.to_dict() | dict(saved.values) | here,
                self.recipe.config.to_dict(),
                is_best,
                shards=saved.shards,
                processes=machine.processes,
            )

    def _require_finite(self, saved: SavedState, state: LoopState) -> None:
        bad = [find_nonfinite(tensors) for tensors in saved.groups.values()]
        name = next((f" ({name})" for name in bad if name is not None), "")
        if self.machine.processes.any(name != ""):
            raise DivergenceError(
                f"a parameter{name} is NaN or infinite after step {state.step}: the parameters "
                f"have diverged and are not saved. {ADVICE}"
            )

    def test(self) -> None:
        """Tests the model and logs its metrics."""
        self.log.begin(self.recipe.config.to_dict())
        self.log.record((), self.recipe.test())
        if self.machine.processes.is_first:
            write_report(self.recipe.config, self.log)

    def benchmark(self) -> list[InferenceLatency]:
        """Measures latency and throughput of inference for each batch size."""
        run, print_line = self.recipe.config.run, self.machine.print_line
        self.log.begin(self.recipe.config.to_dict())
        for line in (*self.recipe.prepare_inference(), TABLE_HEAD):
            print_line(line)
        measured = []
        values: dict[str, float] = {}
        for batch_size in run.inference_benchmark_batch_sizes:
            calls = self.recipe.inferences(batch_size)
            with self.machine.precision.autocast():  # once: entering takes as long as a small layer
                latency = measure_latency(
                    calls, batch_size, self.machine.device, run.inference_benchmark_steps
                )
            measured.append(latency)
            print_line(latency.table_row())
            values |= latency.log_values()
        self.log.record((), values)
        return measured


def check_outputs(config: Config) -> None:
    """Refuses a log, report or folder of events that cannot be written.

    Raises:
        UserError: names the setting and the file.
    """
    log = config.log_file
    if log is not None:
        require_log(log)
    if config.measure.tensorboard is not None:
        import_writer()
        check_writable(Path(config.measure.tensorboard), "tensorboard")
    if config.measure.report is not None:
        require_matplotlib()
        require_writable(Path(config.measure.report), "report")
        if log is not None and not log.is_file() and log.exists():
            raise UserError(
                f"`log_path` {log} is not a file, but `report` is drawn from the log",
                settings=("log_path", "report"),
            )


def check_before_trials(config: Config) -> None:
    """Refuses outputs that cannot be written, before trials rather than after them.

    Raises:
        UserError: names the setting and the file or folder.
    """
    check_outputs(config)
    if (folder := config.checkpoint_folder) is not None:
        check_new(folder, config.folder_setting, can_resume=True)


def try_out(
    open_recipe: Callable[[ConfigT, Machine], Recipe[BatchT]],
    config: ConfigT,
    joined: contextlib.AbstractContextManager[Processes],
    goes_on: Callable[[LoopState], bool] = lambda _: True,
) -> FitResult:
    """Trains only to get the best evaluation; prints and tests nothing.

    Args:
        open_recipe: see `Run.start`.
        config: settings of the trial; without a checkpoint folder nothing is saved.
        joined: context with the processes of the run.
        goes_on: called after each evaluation; False ends the trial.

    Raises:
        UserError: a setting or the dataset is refused.
        DivergenceError: the model learns nothing.
    """
    with joined as processes:
        run = Run.start(open_recipe, config, logger.debug, processes)
        with contextlib.closing(run.log):
            return run.fit(then_test=False, goes_on=goes_on)


def execute(
    mode: str,
    open_recipe: Callable[[ConfigT, Machine], Recipe[BatchT]],
    config: ConfigT,
    print_line: PrintLine,
    joined: contextlib.AbstractContextManager[Processes],
    then: Callable[[Run[BatchT]], object] | None = None,
) -> FitResult | None:
    """Runs one mode of a program.

    Args:
        mode: `train`, `test` or `inference_benchmark`.
        open_recipe: see `Run.start`.
        config: settings as the user gave them.
        joined: context with the processes of the run.
        then: called after a training that no signal has ended.

    Returns:
        The result of the training; None in the other modes.

    Raises:
        UserError: a setting, the dataset or the checkpoint is refused.
        DivergenceError: the model learns nothing.
    """
    if mode == "test" and config.run.load_checkpoint_path is None:
        logger.warning("`mode` test without `load_checkpoint_path` tests an untrained model")
    with joined as processes:
        if mode == "train" and processes.is_first and config.checkpoint_folder is not None:
            check_writable(config.checkpoint_folder, config.folder_setting)
        run = Run.start(open_recipe, config, print_line, processes)
        with contextlib.closing(run.log):
            if mode == "test":
                run.test()
            elif mode == "inference_benchmark":
                run.benchmark()
            else:
                result = run.fit()
                if then is not None and not result.reason.startswith("SIG"):
                    then(run)
                return result
    return None
