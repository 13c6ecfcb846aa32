# SPDX-License-Identifier: Apache-2.0
"""A run of any model: train, test or measure inference.

What differs between models is in their recipes: `dlrm/recipe.py` and `bert4rec/recipe.py`.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic

import torch

from recsys.train.allocator import keep_freed_memory
from recsys.train.checkpoint import CheckpointFolder, read_checkpoint
from recsys.train.loop import BatchT, FitResult, Loop, LoopState
from recsys.train.optimizers.precision import resolve_device, resolve_precision
from recsys.train.processes import ALONE, Processes
from recsys.train.recipe import Announce, Config, ConfigT, Machine, Recipe, Training
from recsys.train.run_log import RunLog
from recsys.train.timing import TABLE_HEAD, InferenceFigures, measure_latency

logger = logging.getLogger(__name__)


def set_up_machine(config: Config, announce: Announce, processes: Processes = ALONE) -> Machine:
    """Applies the settings that concern the process: threads, memory, device, precision, seed.

    Args:
        config: of the run.
        announce: prints a line.
        processes: of the run; the first alone announces.

    Raises:
        UserError: this machine has not what the settings ask for.
    """
    if config.run.num_threads is not None:
        torch.set_num_threads(config.run.num_threads)
    keep_freed_memory()
    device = resolve_device(config.run.base_device)
    asked = config.precision
    precision = resolve_precision(device, asked.amp, asked.amp_dtype, asked.loss_scale)
    torch.manual_seed(config.run.seed)
    return Machine(device, precision, processes, announce if processes.is_first else _say_nothing)


def _say_nothing(_line: str) -> None:
    """Announces for a process that is not the first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run(Generic[BatchT]):
    """A run that is set up.

    Attributes:
        recipe: of the model.
        machine: that it runs on.
        log: of its figures.
    """

    recipe: Recipe[BatchT]
    machine: Machine
    log: RunLog

    @classmethod
    def start(
        cls,
        open_recipe: Callable[[ConfigT, Machine], Recipe[BatchT]],
        config: ConfigT,
        announce: Announce,
        processes: Processes = ALONE,
    ) -> "Run[BatchT]":
        """Sets up the machine, opens data and log, builds the model.

        Args:
            open_recipe: fills in the settings, opens the data and builds the model.
            config: as the user gave it.
            announce: prints a line.
            processes: of the run; the first prints and logs.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
        """
        machine = set_up_machine(config, announce, processes)
        return cls.of(open_recipe(config, machine), machine)

    @classmethod
    def of(
        cls, recipe: Recipe[BatchT], machine: Machine, log_class: type[RunLog] = RunLog
    ) -> "Run[BatchT]":
        """Loads the weights of an opened recipe and opens the log.

        Args:
            recipe: of the model, just built.
            machine: that it was built on.
            log_class: of the log; another one may print what it records.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another model or dataset.
        """
        run, processes = recipe.config.run, machine.processes
        if run.load_checkpoint_path is not None:
            recipe.check_dataset(Path(run.load_checkpoint_path))
            recipe.load_weights(Path(run.load_checkpoint_path))
        log_path = Path(run.log_path) if processes.is_first else None
        log = log_class(log_path, append=_resumes(run.resume, processes))
        log.parameters(recipe.config.to_dict())
        for line in recipe.summary:
            machine.announce(line)
        return cls(recipe, machine, log)

    def fit(self) -> FitResult:
        """Trains, evaluating and saving at the cadences of the settings.

        Raises:
            UserError: a setting, the dataset or the checkpoint is refused.
            DivergenceError: the model learns nothing.
        """
        config, machine = self.recipe.config, self.machine
        training = self.recipe.training()
        folder = CheckpointFolder(config.checkpoint_folder) if config.checkpoint_folder else None
        state = LoopState() if folder is None else self._begin_in(folder, training)
        machine.announce(training.summary())
        result = Loop(
            config=training.cadence,
            schedule=training.schedule,
            step=training.step,
            source=training.source,
            evaluate=training.evaluate,
            save=None if folder is None else self._saver(folder, training),
            log=self.log,
            device=machine.device,
            announce=machine.announce,
            metric_name=training.metric,
            state=state,
            processes=machine.processes,
        ).fit()
        for figures in training.report(result, folder):
            self.log.record((), figures)
        return result

    def _begin_in(self, folder: CheckpointFolder, training: Training[BatchT]) -> LoopState:
        """Checks the checkpoint folder; returns the position of a resumed run."""
        setting = f"`{self.recipe.folder_setting}`"
        folder.check_writable(setting)
        if training.layout is not None:
            training.layout.check_destination(folder.folder)
            return LoopState()
        config = self.recipe.config
        if not _resumes(config.run.resume, self.machine.processes):
            folder.check_unused(setting)
            return LoopState()
        return self.resume(folder, training)

    def resume(self, folder: CheckpointFolder, training: Training[BatchT]) -> LoopState:
        """Restores the latest checkpoint of a run that is resumed.

        Raises:
            CheckpointError: the checkpoint is damaged, or was made with other settings or data.
        """
        latest = folder.latest()
        if latest is None:
            return LoopState()
        checkpoint = read_checkpoint(latest)
        checkpoint.check_same_settings(self.recipe.config.to_dict(), self.recipe.resumable)
        self.recipe.check_dataset(latest)
        training.restore(checkpoint)
        state = LoopState.from_dict(checkpoint.state)
        self.machine.announce(f"Resumed from {latest} at step {state.step}")
        return state

    def save(
        self, folder: CheckpointFolder, training: Training[BatchT], state: LoopState, is_best: bool
    ) -> None:
        """Saves everything that a resumed run needs; every process must call it."""
        if training.layout is not None:
            training.layout.save(folder.folder, state, is_best)
            return
        with training.saved() as saved:
            folder.save(
                state.step,
                saved.groups,
                state.to_dict() | dict(saved.values),
                self.recipe.config.to_dict(),
                is_best,
                parts=saved.parts,
                processes=self.machine.processes,
            )

    def _saver(
        self, folder: CheckpointFolder, training: Training[BatchT]
    ) -> Callable[[LoopState, bool], None]:
        return lambda state, is_best: self.save(folder, training, state, is_best)

    def test(self) -> None:
        """Tests the model and logs its figures."""
        self.log.record((), self.recipe.test())

    def benchmark(self) -> list[InferenceFigures]:
        """Measures latency and throughput of inference for each batch size."""
        run, announce = self.recipe.config.run, self.machine.announce
        for line in (*self.recipe.inference_summary(), TABLE_HEAD):
            announce(line)
        measured = []
        values: dict[str, float] = {}
        for batch_size in run.inference_benchmark_batch_sizes:
            calls = self.recipe.inferences(batch_size)
            figures = measure_latency(
                calls, batch_size, self.machine.device, run.inference_benchmark_steps
            )
            measured.append(figures)
            announce(figures.table_row())
            values |= figures.log_values()
        self.log.record((), values)
        return measured


def _resumes(asked: bool, processes: Processes) -> bool:
    """Returns whether to continue; processes that torchrun starts anew do so unasked."""
    return asked or processes.restarts > 0


def execute(
    mode: str,
    open_recipe: Callable[[ConfigT, Machine], Recipe[BatchT]],
    config: ConfigT,
    announce: Announce,
    joined: contextlib.AbstractContextManager[Processes],
) -> FitResult | None:
    """Runs one mode of a program.

    Args:
        mode: `train`, `test` or `inference_benchmark`.
        open_recipe: see `Run.start`.
        config: as the user gave it.
        announce: prints a line.
        joined: the processes of the run, while the context lasts.

    Returns:
        How the training ended; None in the other modes.

    Raises:
        UserError: a setting, the dataset or the checkpoint is refused.
        DivergenceError: the model learns nothing.
    """
    if mode == "test" and config.run.load_checkpoint_path is None:
        logger.warning("`mode` test without `load_checkpoint_path` tests a fresh model")
    with joined as processes:
        run = Run.start(open_recipe, config, announce, processes)
        if mode == "test":
            run.test()
        elif mode == "inference_benchmark":
            run.benchmark()
        else:
            return run.fit()
    return None
