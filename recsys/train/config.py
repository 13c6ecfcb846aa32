# SPDX-License-Identifier: Apache-2.0
"""Settings that every model has."""

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from recsys.errors import UserError
from recsys.settings import (
    Not,
    Sections,
    joined,
    require_below,
    require_not_negative,
    require_positive,
    require_threads,
    sections_from_dict,
    setting,
    to_dict,
)
from recsys.train.measure import MeasureConfig
from recsys.train.optimizers import AmpDtype
from recsys.train.origin import ignore_fingerprint

LOG_FILE = "log.json"
LOG_PATH_HELP = (
    f"Destination of the log of metrics; empty takes {LOG_FILE} in the folder that a training "
    "saves in, and no file without one"
)
PROCESS_TIMEOUT_S = 600.0
"""Long, because processes wait while one of them starts or writes a file."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Length, evaluation, devices, log and checkpoints of a run."""

    seed: int = setting(12345, "Random seed")
    max_steps: int | None = setting(
        None, "Stop after this many steps", resumable=True, used_with={"mode": ("train",)}
    )
    test_freq: int | None = setting(
        None,
        "Steps between validations; by default one per epoch",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    patience: int | None = setting(
        None,
        "Stop after this many validations without a better result",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    base_device: Literal["auto", "cuda", "cpu"] = setting(
        "auto", "Device of the model; auto takes CUDA if available", resumable=True
    )
    num_threads: int | None = setting(
        None, "CPU threads of a step; by default one per core", resumable=True
    )
    process_timeout: float = setting(
        PROCESS_TIMEOUT_S,
        "Seconds that a process waits for the others, at the start and in a collective, before the "
        "run ends with an error that names the missing ones",
        resumable=True,
    )
    print_freq: int = setting(100, "Steps between lines of progress", resumable=True)
    log_path: str = setting("./log.json", LOG_PATH_HELP, resumable=True)
    load_checkpoint_path: str | None = setting(
        None, "Checkpoint to load, or folder of a run that saved one", resumable=True
    )
    save_freq: int | None = setting(
        None,
        "Steps between checkpoints, in addition to those at the best evaluation, at the end and on "
        "SIGTERM, SIGINT or SIGHUP",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    resume: bool = setting(
        False,
        "Continue the run in the folder of the checkpoints, if there is one",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    benchmark_warmup_steps: int = setting(
        0,
        "Number of first steps to leave out of the throughput",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    inference_benchmark_batch_sizes: tuple[int, ...] = setting(
        (1, 64, 1024),
        "Batch sizes of --mode inference_benchmark",
        resumable=True,
        used_with={"mode": ("train", "inference_benchmark")},
    )

    @property
    def inference_benchmark_steps(self) -> int:
        """Steps of each inference benchmark."""
        return 100

    def __post_init__(self) -> None:
        """Refuses numbers out of range."""
        require_positive(self, "print_freq", "process_timeout")
        require_not_negative(self, "seed", "benchmark_warmup_steps")
        require_below(self, "seed", 2**63)
        require_threads(self, "num_threads")
        for name in ("max_steps", "test_freq", "save_freq", "patience"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        sizes = self.inference_benchmark_batch_sizes
        if not sizes or min(sizes) < 1:
            raise UserError(
                f"`inference_benchmark_batch_sizes` must be positive, got {joined(sizes)!r}",
                setting="inference_benchmark_batch_sizes",
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionSettings:
    """Settings of mixed precision."""

    amp: bool = setting(False, "Compute matrix products in half precision")
    amp_dtype: AmpDtype = setting(
        "bfloat16", "Type of the matrix products under --amp", used_with={"amp": Not(False)}
    )

    @property
    def loss_scale(self) -> float:
        """Static loss scale of float16."""
        return 1024.0

    @property
    def tf32(self) -> bool:
        """False: on a GPU, mixed precision is faster."""
        return False


OF_TRAINING = {"mode": ("train",)}
"""`used_with` of settings that a checkpoint keeps, or that only a training uses."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SettingsOfRun(abc.ABC):
    """All settings of a run, by section.

    Attributes:
        sections: class of each section -> name of the attribute that holds it.
        data: section of the dataset; has `require_folder`.
        run: section of task and files; has `load_checkpoint_path`.
        explicit: names of the settings that the user gave.
    """

    sections: ClassVar[Sections]
    data: Any
    run: Any
    explicit: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Returns every setting under its flag name, as plain values."""
        return to_dict(self, self.sections)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], explicit: frozenset[str] = frozenset()) -> Self:
        """Builds a config from values under their flag names.

        Raises:
            UserError: a name is unknown, or a value is refused.
        """
        return cls(**sections_from_dict(values, cls.sections), explicit=explicit)

    @property
    @abc.abstractmethod
    def checkpoint_folder(self) -> Path | None:
        """Folder of the run's checkpoints; None saves no checkpoints."""

    @property
    def log_file(self) -> Path | None:
        """File of the log; None logs nothing."""
        if self.run.log_path:
            return Path(self.run.log_path)
        folder = self.checkpoint_folder if self.run.mode == "train" else None
        return None if folder is None else folder / LOG_FILE

    def require_inputs(self) -> None:
        """Refuses a dataset or a checkpoint that does not exist.

        It does not import torch, which takes seconds.

        Raises:
            UserError: names the folder.
        """
        self.data.require_folder()
        if self.run.load_checkpoint_path is not None:
            require_checkpoint(Path(self.run.load_checkpoint_path), "load_checkpoint_path")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config(SettingsOfRun):
    """All settings of the run of a model that is trained step by step.

    Attributes:
        folder_setting: name of the setting of the checkpoint folder.
    """

    folder_setting: ClassVar[str]
    run: RunSettings = dataclasses.field(default_factory=RunSettings)
    precision: PrecisionSettings = dataclasses.field(default_factory=PrecisionSettings)
    measure: MeasureConfig = dataclasses.field(default_factory=MeasureConfig)

    def __post_init__(self) -> None:
        """Refuses to resume or to save without a folder, and to start from two checkpoints."""
        for name in ("resume", "save_freq"):
            if getattr(self.run, name) and self.checkpoint_folder is None:
                raise UserError(
                    f"`{name}` needs `{self.folder_setting}`, the folder of the run",
                    settings=(name, self.folder_setting),
                )
        if self.run.resume and self.run.load_checkpoint_path is not None:
            raise UserError(
                f"`resume` continues from `{self.folder_setting}`; drop `load_checkpoint_path`",
                settings=("resume", self.folder_setting, "load_checkpoint_path"),
            )


def require_checkpoint(path: Path, setting_name: str) -> None:
    """Refuses the path of a checkpoint that does not exist.

    Raises:
        UserError: names the setting and the path.
    """
    if not path.exists():
        raise UserError(
            f"`{setting_name}` {path}: no checkpoint here, nor a folder; give the folder that the "
            "training run saved in",
            setting=setting_name,
        )


class FitKind(Protocol):
    """A kind of model that is fitted in one call."""

    @property
    def name(self) -> str:
        """Name of the kind, as in commands and checkpoints."""

    @property
    def title(self) -> str:
        """Name of the kind in sentences."""

    @property
    def settings_class(self) -> type:
        """Class of the settings of the model."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SettingsOfFit(SettingsOfRun):
    """All settings of a run that fits a model in one call; `config_class` adds the model's.

    Attributes:
        shared: all sections except that of the model; see `SettingsOfRun.sections`.
        model: settings of the model.
    """

    shared: ClassVar[Sections]
    model: Any


SettingsT = TypeVar("SettingsT", bound=SettingsOfFit)


def config_class(settings: type[SettingsT], kind: FitKind) -> type[SettingsT]:
    """Returns the class of all settings of a run with a kind of model."""

    class Whole(settings):  # type: ignore[misc, valid-type]
        __slots__ = ()

    Whole.sections = {kind.settings_class: "model", **settings.shared}
    return Whole
