# SPDX-License-Identifier: Apache-2.0
"""All settings of a run, checked against each other."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from bert4rec.config.data import DataConfig
from bert4rec.config.model import AdapterConfig, ModelConfig
from bert4rec.config.optimizer import ObjectiveConfig, OptimizerConfig
from bert4rec.config.run import RunConfig
from recsys.errors import UserError
from recsys.ratings.config import ListConfig
from recsys.ratings.evaluation import EvaluationConfig
from recsys.train.config import Config, PrecisionSettings
from recsys.train.measure import MeasureConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bert4RecConfig(Config):
    """All settings of a BERT4Rec run."""

    sections: ClassVar = {
        ModelConfig: "model",
        DataConfig: "data",
        ObjectiveConfig: "objective",
        OptimizerConfig: "optimizer",
        PrecisionSettings: "precision",
        AdapterConfig: "adapter",
        EvaluationConfig: "evaluation",
        RunConfig: "run",
        ListConfig: "lists",
        MeasureConfig: "measure",
    }
    folder_setting = "export_root"
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    objective: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    adapter: AdapterConfig = dataclasses.field(default_factory=AdapterConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    lists: ListConfig = dataclasses.field(default_factory=ListConfig)

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other."""
        Config.__post_init__(self)
        if self.run.use_torch_jit_trace:
            self._check_trace()
        if self.adapter.adapter != "none":
            self._check_adapter()
        if self.run.mode == "train":
            self._check_days()
        half = self.precision.amp and self.precision.amp_dtype == "float16"
        if half and self.run.parallelism == "dmp":
            raise UserError(
                "`amp_dtype` float16 does not work with `parallelism` dmp, which updates the item "
                "table during backward, before an overflow is known: use `amp_dtype` bfloat16",
                settings=("amp_dtype", "parallelism"),
            )

    def _check_days(self) -> None:
        if self.run.progressive and not self.run.grow:
            raise UserError(
                "`progressive` is for `mode` test, or for a training with `grow`",
                settings=("progressive", "grow"),
            )
        if self.run.grow and (not self.run.export_root or self.data.dataset_name == "random"):
            raise UserError(
                "`grow` needs `export_root` for the models of the days, and days on disk",
                settings=("grow", "export_root", "dataset_name"),
            )

    def require_inputs(self) -> None:
        """Refuses a dataset or a checkpoint that does not exist; see `SettingsOfRun`."""
        if not self.run.grow:
            Config.require_inputs(self)

    def _check_trace(self) -> None:
        if self.run.mode == "train" and self.run.parallelism == "dmp":
            raise UserError(
                "`use_torch_jit_trace` cannot trace the shards of `parallelism` dmp after "
                "training: use it with `mode` inference_benchmark and the checkpoint",
                settings=("use_torch_jit_trace", "parallelism", "mode"),
            )

    def _check_adapter(self) -> None:
        adapter, run = self.adapter.adapter, self.run
        if run.mode == "train" and run.load_checkpoint_path is None and not run.resume:
            raise UserError(
                f"`adapter` {adapter} changes a trained model: give its checkpoint as "
                "`load_checkpoint_path`",
                settings=("adapter", "load_checkpoint_path"),
            )
        if run.parallelism == "dmp":
            raise UserError(
                f"`adapter` {adapter} freezes the item table, which `parallelism` dmp is meant to "
                "train: leave `parallelism` dmp out",
                settings=("adapter", "parallelism"),
            )

    @property
    def _scores_with_every_row(self) -> bool:
        return self.objective.loss == "full" and self.model.head == "tied"

    @property
    def updates_after_backward(self) -> bool:
        """True if sharded tables are updated by our own optimizer after backward.

        FBGEMM's optimizer updates rows during backward: once per batch, and before the norm of the
        gradient is known. It cannot apply the gradient of a whole table.
        """
        optimizer = self.optimizer
        needed = optimizer.clip_norm is not None or optimizer.accumulation_steps > 1
        return self.run.parallelism == "dmp" and (needed or self._scores_with_every_row)

    @property
    def updates_rows(self) -> bool:
        """True if steps update only the looked-up rows of item tables."""
        if self.adapter.adapter != "none":
            return False
        return self.objective.loss != "full" or self.run.parallelism == "dmp"

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the checkpoints; None if none are saved."""
        return Path(self.run.export_root) if self.run.export_root else None
