# SPDX-License-Identifier: Apache-2.0
"""The interface that a model implements to be trained and tested."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from recsys.train.checkpoint import Checkpoint, RowShard
from recsys.train.config import Config, SettingsOfRun
from recsys.train.loop import (
    BatchSource,
    BatchT,
    Evaluation,
    FitResult,
    LoopConfig,
    LoopState,
    Metric,
    TrainStep,
)
from recsys.train.optimizers.precision import Precision
from recsys.train.optimizers.schedule import Schedule
from recsys.train.processes import Processes
from recsys.train.saving.run_folder import CheckpointFolder

PrintLine = Callable[[str], None]
"""Prints a line, on the first process only."""

ConfigT = TypeVar("ConfigT", bound=Config)
SettingsT = TypeVar("SettingsT", bound=SettingsOfRun)


def adopt(config: SettingsT, values: Mapping[str, Any]) -> SettingsT:
    """Returns a config with new values for settings that the user did not give.

    Args:
        config: config to change; it is copied.
        values: name of a setting -> new value.

    Raises:
        UserError: a value is refused.
    """
    current = config.to_dict()
    changes = {
        name: value
        for name, value in values.items()
        if name not in config.explicit and current[name] != value
    }
    return config.from_dict(current | changes, config.explicit)


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Device, precision and processes of a run.

    Attributes:
        device: device of the model.
        precision: precision of the forward pass.
        print_line: prints a line, on the first process.
    """

    device: torch.device
    precision: Precision
    processes: Processes
    print_line: PrintLine


@dataclasses.dataclass(frozen=True, slots=True)
class SavedState:
    """A recipe's tensors in a checkpoint.

    Attributes:
        groups: group -> name -> tensor that this process writes.
        shards: sharded group -> rows that this process holds.
        values: plain values, in addition to the state of the loop.
    """

    groups: Mapping[str, Mapping[str, Tensor]]
    shards: Mapping[str, RowShard] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Training(Protocol[BatchT]):
    """A model in training."""

    @property
    def source(self) -> BatchSource[BatchT]:
        """The training batches."""

    @property
    def step(self) -> TrainStep[BatchT]:
        """The step that trains on a batch."""

    @property
    def schedule(self) -> Schedule:
        """Learning rate of every step."""

    @property
    def cadence(self) -> LoopConfig:
        """Steps at which to print, evaluate, save and end."""

    @property
    def metric(self) -> Metric:
        """The metric that chooses the best checkpoint."""

    def summary(self) -> str:
        """Describes the training batches in one line."""

    def begin_epoch(self, epoch: int) -> None:
        """Prepares the model for the first batch of an epoch."""

    def count(self, batch: BatchT) -> Mapping[str, int]:
        """Returns the counts that `run_benchmark` divides by time, such as samples."""

    def evaluate(self, epochs_done: int) -> Evaluation:
        """Evaluates the model on the split that chooses the best checkpoint.

        Raises:
            DivergenceError: the model is no better than chance.
        """

    def keep_best(self) -> None:
        """Keeps a copy of the weights for `report`, in a run that saves no checkpoints.

        Every process must call it.
        """

    def saved(self) -> contextlib.AbstractContextManager[SavedState]:
        """Collects the state to save; every process must enter it."""

    def restore(self, checkpoint: Checkpoint, state: LoopState) -> LoopState:
        """Restores the state of `saved` from a checkpoint.

        Args:
            checkpoint: checkpoint of this run.
            state: its position.

        Returns:
            The position to continue from: `state`, or the start of the next day of a dataset that
            grows.

        Raises:
            CheckpointError: the checkpoint is damaged or of another model.
        """

    def report(
        self, result: FitResult, folder: CheckpointFolder | None
    ) -> Iterator[Mapping[str, Any]]:
        """Prints the outcome, and yields the final records of the log.

        If it tests a model, it tests the best one by the evaluations, wherever that was kept.
        """


class Recipe(Protocol[BatchT]):
    """A model on its device, with its settings and data."""

    @property
    def config(self) -> Config:
        """The settings, completed from checkpoint, dataset and machine."""

    @property
    def fixed(self) -> Sequence[str]:
        """Names of settings that a resumed run must repeat, see `fixed_settings`."""

    @property
    def summary(self) -> Sequence[str]:
        """Lines that describe the data and the model."""

    def check_dataset(self, checkpoint: Checkpoint) -> None:
        """Refuses a checkpoint that was trained on another dataset.

        Raises:
            CheckpointError: the datasets differ.
        """

    def load(self) -> None:
        """Copies the weights of `load_checkpoint_path` into the model, if it is set.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another model or dataset.
        """

    def training(self) -> Training[BatchT]:
        """Prepares the model for training.

        Raises:
            UserError: a setting or the dataset is refused.
        """

    def test(self) -> Mapping[str, Any]:
        """Tests the model, prints the metrics, and returns those to log."""

    def inferences(self, batch_size: int) -> Sequence[Callable[[], object]]:
        """Returns calls that each run inference on a different batch on the device."""

    def prepare_inference(self) -> Sequence[str]:
        """Prepares the model for inference; returns lines to print about it."""
