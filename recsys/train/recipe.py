# SPDX-License-Identifier: Apache-2.0
"""The protocol of a model's recipe, which `recsys.train.run` runs."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from recsys.train.checkpoint import Checkpoint, CheckpointFolder, RowPart
from recsys.train.loop import (
    BatchSource,
    BatchT,
    Evaluation,
    FitResult,
    LoopConfig,
    LoopState,
    TrainStep,
)
from recsys.train.optimizers.precision import AmpDtype, Precision
from recsys.train.optimizers.schedule import Schedule
from recsys.train.processes import Processes

logger = logging.getLogger(__name__)

Announce = Callable[[str], None]
"""Prints a line; only the first of several processes does."""

ConfigT = TypeVar("ConfigT", bound="Config")


class RunSettings(Protocol):
    """The settings of a run that every model has."""

    @property
    def base_device(self) -> str:
        """`auto`, `cuda` or `cpu`."""

    @property
    def num_threads(self) -> int | None:
        """CPU threads of a step; None leaves PyTorch's number."""

    @property
    def seed(self) -> int:
        """Seed of the weights and of everything that is drawn."""

    @property
    def log_path(self) -> str:
        """File of the log."""

    @property
    def load_checkpoint_path(self) -> str | None:
        """Checkpoint to start from."""

    @property
    def resume(self) -> bool:
        """Whether to continue the run in the checkpoint folder."""

    @property
    def inference_benchmark_batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes to measure."""

    @property
    def inference_benchmark_steps(self) -> int:
        """Measured steps of each batch size."""


class PrecisionSettings(Protocol):
    """The settings of mixed precision."""

    @property
    def amp(self) -> bool:
        """Whether to compute matrix products in half precision."""

    @property
    def amp_dtype(self) -> AmpDtype:
        """Type of those products."""

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in float16; 1 turns scaling off."""


class Config(Protocol):
    """All settings of a model's run."""

    @property
    def run(self) -> RunSettings:
        """Settings of the run."""

    @property
    def precision(self) -> PrecisionSettings:
        """Settings of mixed precision."""

    @property
    def explicit(self) -> frozenset[str]:
        """Names of the settings that the user gave."""

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the run's checkpoints; None saves none."""

    def to_dict(self) -> dict[str, Any]:
        """Returns every setting by name, as plain values."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], explicit: frozenset[str]) -> Self:
        """Builds a config from values by name."""


def adopt(config: ConfigT, values: Mapping[str, Any], why: str) -> ConfigT:
    """Returns a config with other values, but keeps settings given explicitly.

    Args:
        config: as it is.
        values: by name of the setting.
        why: reason, which is logged with each change.

    Raises:
        UserError: a value is refused.
    """
    current = config.to_dict()
    changes = {
        name: value
        for name, value in values.items()
        if name not in config.explicit and current[name] != value
    }
    for name, value in changes.items():
        logger.info("`%s`: %s, %s", name, value, why)
    return config.from_dict(current | changes, config.explicit)


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Device, precision and processes of a run.

    Attributes:
        device: of the model.
        precision: of the forward pass.
        processes: of the run.
        announce: prints a line, on the first process.
    """

    device: torch.device
    precision: Precision
    processes: Processes
    announce: Announce


@dataclasses.dataclass(frozen=True, slots=True)
class SavedState:
    """A recipe's tensors in a checkpoint.

    Attributes:
        groups: group -> named tensors that this process writes.
        parts: rows of a group that this process has, where they are not all.
        values: plain values beside the state of the loop.
    """

    groups: Mapping[str, Mapping[str, Tensor]]
    parts: Mapping[str, RowPart] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class WeightsLayout(Protocol):
    """Another project's checkpoint layout: weights only, not resumable."""

    def check_destination(self, folder: Path) -> None:
        """Refuses a folder that holds anything else.

        Raises:
            CheckpointError: it does.
        """

    def save(self, folder: Path, state: LoopState, is_best: bool) -> None:
        """Saves the weights; every process must call it."""


class Training(Protocol[BatchT]):
    """A model in training."""

    @property
    def source(self) -> BatchSource[BatchT]:
        """Training batches."""

    @property
    def step(self) -> TrainStep[BatchT]:
        """Step that trains on one of them."""

    @property
    def schedule(self) -> Schedule:
        """Learning rate of every step."""

    @property
    def cadence(self) -> LoopConfig:
        """When to print, evaluate, save and end."""

    @property
    def metric(self) -> str:
        """Name of the metric that chooses the best checkpoint."""

    @property
    def layout(self) -> WeightsLayout | None:
        """Layout of the checkpoints; None for that of this project."""

    def summary(self) -> str:
        """Returns a line that says what is trained on."""

    def evaluate(self, epochs_done: int) -> Evaluation:
        """Evaluates the model on the split that chooses the best checkpoint.

        Raises:
            DivergenceError: the model is guessing.
        """

    def saved(self) -> contextlib.AbstractContextManager[SavedState]:
        """Holds the state to resume from; every process enters it."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Puts back what `saved` gave.

        Raises:
            CheckpointError: the checkpoint is damaged or of another model.
        """

    def report(
        self, result: FitResult, folder: CheckpointFolder | None
    ) -> Iterator[Mapping[str, float]]:
        """Announces the outcome and yields the final records of the log."""


class Recipe(Protocol[BatchT]):
    """A model on its device, with its settings and data."""

    @property
    def config(self) -> Config:
        """Settings, with every open one filled in."""

    @property
    def resumable(self) -> frozenset[str]:
        """Names of the settings in which a resumed run may differ."""

    @property
    def folder_setting(self) -> str:
        """Name of the setting of the checkpoint folder."""

    @property
    def summary(self) -> Sequence[str]:
        """Lines that say what was opened and built."""

    def check_dataset(self, path: Path) -> None:
        """Refuses a checkpoint that was trained on another dataset.

        Raises:
            CheckpointError: it was.
        """

    def load_weights(self, path: Path) -> None:
        """Puts the weights of a checkpoint into the model.

        Raises:
            CheckpointError: it is damaged or of another model.
        """

    def training(self) -> Training[BatchT]:
        """Prepares the model for training.

        Raises:
            UserError: a setting or the dataset is refused.
        """

    def test(self) -> Mapping[str, float]:
        """Tests the model, announces the figures and returns those to log."""

    def inferences(self, batch_size: int) -> Sequence[Callable[[], object]]:
        """Returns calls that each answer another batch, already on the device."""

    def inference_summary(self) -> Sequence[str]:
        """Returns lines that say what an inference is."""
