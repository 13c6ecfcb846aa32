# SPDX-License-Identifier: Apache-2.0
"""Settings of a run with a fitted model."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from recsys.errors import UserError
from recsys.ratings.config import HistoriesConfig, ListConfig
from recsys.ratings.evaluation import EvaluationConfig
from recsys.settings import (
    Sections,
    require_not_negative,
    require_positive,
    require_threads,
    setting,
)
from recsys.train.config import LOG_PATH_HELP, OF_TRAINING, SettingsOfFit
from recsys.train.origin import ignore_fingerprint


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FittedRun:
    """Task, files and threads of a run."""

    mode: Literal["train", "test", "recommend"] = setting(
        "train", "Fit and test a model, test a checkpoint, or recommend with one"
    )
    export_root: str = setting(
        "", "Folder of the checkpoint; empty saves none", used_with=OF_TRAINING
    )
    load_checkpoint_path: str | None = setting(
        None,
        "Checkpoint to load, or folder of a run that saved one",
        used_with={"mode": ("test", "recommend")},
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    log_path: str = setting("./log.json", LOG_PATH_HELP, used_with={"mode": ("train", "test")})
    test_batch_size: int = setting(256, "Histories scored per batch")
    num_threads: int | None = setting(None, "CPU threads; by default one per core")
    seed: int = setting(
        12345, "Seeds --dataset_name random", used_with={"dataset_name": ("random",)}
    )

    def __post_init__(self) -> None:
        """Refuses a mode without the checkpoint it needs, and numbers out of range."""
        require_positive(self, "test_batch_size")
        require_not_negative(self, "seed")
        require_threads(self, "num_threads")
        if self.mode != "train" and self.load_checkpoint_path is None:
            raise UserError(
                f"`mode` {self.mode} needs `load_checkpoint_path`, a trained model",
                settings=("mode", "load_checkpoint_path"),
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FittedConfig(SettingsOfFit):
    """All settings of a run with a fitted model of ratings."""

    shared: ClassVar[Sections] = {
        HistoriesConfig: "data",
        EvaluationConfig: "evaluation",
        FittedRun: "run",
        ListConfig: "lists",
    }
    data: HistoriesConfig = dataclasses.field(default_factory=HistoriesConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    run: FittedRun = dataclasses.field(default_factory=FittedRun)
    lists: ListConfig = dataclasses.field(default_factory=ListConfig)

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the checkpoint; None saves no checkpoint."""
        return Path(self.run.export_root) if self.run.export_root else None
