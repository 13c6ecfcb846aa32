# SPDX-License-Identifier: Apache-2.0
"""Settings of a run with a model of clicks that is fitted at once, without steps."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from dlrm.config import DataConfig
from recsys.errors import UserError
from recsys.settings import Sections, require_known, require_threads, setting
from recsys.train.config import LOG_PATH_HELP, OF_TRAINING, SettingsOfFit
from recsys.train.origin import ignore_fingerprint

_BASELINES = ("lightgbm",)

OF_STEPS = frozenset(
    {
        *("batch_size", "drop_last", "loader", "shuffle_batch_order"),
        *("synthetic_dataset_num_entries", "synthetic_dataset_table_sizes"),
        *("synthetic_dataset_dir", "synthetic_distribution"),
    }
)
"""Settings of `DataConfig` that apply only to training by steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogisticSettings:
    """Settings of a logistic regression; validation rows choose the strength of its penalty."""

    hash_indices: bool = setting(
        False,
        "Take ids modulo the rows of their table, for a dataset with larger ids or with "
        "--num_embeddings_per_feature",
        used_with=OF_TRAINING,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClicksRun:
    """Task, files and threads of a run."""

    mode: Literal["train", "test", "predict"] = setting(
        "train", "Fit and test, test a checkpoint, or predict with one"
    )
    save_checkpoint_path: str | None = setting(
        None, "Folder of the checkpoint; by default none is saved", used_with=OF_TRAINING
    )
    load_checkpoint_path: str | None = setting(
        None, "Checkpoint, or folder of a run, to load", used_with={"mode": ("test", "predict")}
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    gauc_by: str | None = setting(
        None,
        "Also report the AUC within the rows of each id of this categorical feature (GAUC), or of "
        "each group of a schema. Id 0 is skipped if it means missing, rare or unseen",
        used_with={"mode": ("test",)},
    )
    baselines: tuple[str, ...] = setting(
        _BASELINES,
        "What a test compares with, in addition to the constant click rate: lightgbm if it is "
        "installed; empty for nothing else",
    )
    predictions: str | None = setting(
        None,
        "File for the predictions of --eval_split, as for a DLRM; .csv or .parquet",
        used_with={"mode": ("predict",)},
    )
    log_path: str = setting("./log.json", LOG_PATH_HELP)
    num_threads: int | None = setting(None, "CPU threads; by default one per core")

    def __post_init__(self) -> None:
        """Refuses unknown baselines, and a mode without the files that it needs."""
        require_known(self, "baselines", _BASELINES)
        require_threads(self, "num_threads")
        needed = {"train": "", "test": "load_checkpoint_path"}
        for name in needed.get(self.mode, "predictions load_checkpoint_path").split():
            if getattr(self, name) is None:
                raise UserError(f"`mode` {self.mode} needs `{name}`", settings=("mode", name))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClicksConfig(SettingsOfFit):
    """All settings of a run with a fitted model of clicks."""

    shared: ClassVar[Sections] = {DataConfig: "data", ClicksRun: "run"}
    data: DataConfig
    run: ClicksRun = dataclasses.field(default_factory=ClicksRun)

    def __post_init__(self) -> None:
        """Refuses generated rows."""
        if self.data.is_synthetic:
            raise UserError(
                f"`dataset_type` {self.data.dataset_type}: nothing can be learned from random "
                "labels; give a dataset",
                setting="dataset_type",
            )

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the checkpoint; None if none is saved."""
        path = self.run.save_checkpoint_path
        return None if path is None else Path(path)
