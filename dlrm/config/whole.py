# SPDX-License-Identifier: Apache-2.0
"""All settings of a run, with checks of their combinations."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from dlrm.config.data import DataConfig
from dlrm.config.model import ModelConfig
from dlrm.config.optimizer import OptimizerConfig, PrecisionConfig
from dlrm.config.run import RunConfig
from recsys.errors import UserError
from recsys.train.config import Config
from recsys.train.measure import MeasureConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DlrmConfig(Config):
    """All settings of a DLRM run."""

    sections: ClassVar = {
        ModelConfig: "model",
        DataConfig: "data",
        OptimizerConfig: "optimizer",
        PrecisionConfig: "precision",
        RunConfig: "run",
        MeasureConfig: "measure",
    }
    folder_setting = "save_checkpoint_path"
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    precision: PrecisionConfig = dataclasses.field(default_factory=PrecisionConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other."""
        Config.__post_init__(self)
        if self.precision.quantize != "none":
            self._check_quantization()
        if self.run.grow and self.run.mode == "train":
            self._check_growth()
        if self.run.table_memory is not None:
            self._check_table_files()
        if self.run.deterministic:
            self._check_deterministic()
        for name in ("test_freq", "patience", "auc_threshold"):
            if self.run.test_after > self.run.epochs and getattr(self.run, name) is not None:
                raise UserError(
                    f"`{name}` needs evaluations, but the run ends after `epochs` "
                    f"{self.run.epochs}, before `test_after` {self.run.test_after:g}",
                    settings=(name, "test_after", "epochs"),
                )
        if self.run.mode == "predict":
            for name in ("predictions", "load_checkpoint_path"):
                if getattr(self.run, name) is None:
                    raise UserError(f"`mode` predict needs `{name}`", settings=("mode", name))

    def _check_quantization(self) -> None:
        if self.run.mode == "train":
            raise UserError(
                "`quantize` is for trained models, not for `mode` train",
                settings=("quantize", "mode"),
            )
        if self.precision.amp:
            raise UserError(
                "`quantize` and `amp` exclude each other; remove one", settings=("quantize", "amp")
            )
        if self.model.batch_norm:
            raise UserError(
                "`quantize` does not support the layers of `batch_norm`",
                settings=("quantize", "batch_norm"),
            )

    def _check_table_files(self) -> None:
        """Refuses settings that need whole tables in memory."""
        needed: dict[str, tuple[object, object]] = {
            "embedding_type": (self.model.embedding_type, "joint_fused"),
            "embedding_storage": (self.model.embedding_storage, "float32"),
            "reset_embeddings": (self.optimizer.reset_embeddings, False),
            "embedding_l2": (self.optimizer.embedding_l2, 0.0),
            "quantize": (self.precision.quantize, "none"),
        }
        for name, (value, supported) in needed.items():
            if value != supported:
                raise UserError(
                    f"`table_memory` needs `{name}` {supported}, not {value}: leave one of them "
                    "out",
                    settings=("table_memory", name),
                )

    def _check_deterministic(self) -> None:
        """Refuses settings whose sums or draws depend on the number of processes."""
        needed: dict[str, tuple[object, tuple[object, ...]]] = {
            "interaction_op": (self.model.interaction_op, ("cuda_dot", "cat", "dcnv2")),
            "embedding_type": (self.model.embedding_type, ("joint_fused",)),
            "embedding_storage": (self.model.embedding_storage, ("float32",)),
            "numerical_embedding": (self.model.numerical_embedding, ("none",)),
            "batch_norm": (self.model.batch_norm, (False,)),
            "dropout": (self.model.dropout, (0.0,)),
            "reset_embeddings": (self.optimizer.reset_embeddings, (False,)),
            "amp": (self.precision.amp, (False,)),
            "grow": (self.run.grow, (False,)),
        }
        for name, (value, supported) in needed.items():
            if value not in supported:
                choices = " or ".join(str(choice).lower() for choice in supported)
                raise UserError(
                    f"`deterministic` needs `{name}` {choices}, not {str(value).lower()}: its sums "
                    "or random numbers depend on the number of processes",
                    settings=("deterministic", name),
                )

    def _check_growth(self) -> None:
        """Refuses settings that depend on a fixed number of rows or ids."""
        fixed = {
            "hash_indices": self.model.hash_indices,
            "id_statistics": bool(self.model.id_statistics),
            "reset_embeddings": self.optimizer.reset_embeddings,
            "num_embeddings_per_feature": bool(self.data.num_embeddings_per_feature),
            "max_steps": self.run.max_steps is not None,
            "load_checkpoint_path": self.run.load_checkpoint_path is not None,
        }
        for name, is_set in fixed.items():
            if is_set:
                raise UserError(
                    f"`grow` trains on days with more and more ids, which `{name}` does not "
                    "support: leave one of them out",
                    settings=("grow", name),
                )
        if self.data.is_synthetic:
            raise UserError(
                f"`grow` needs the days of a dataset on disk, not `dataset_type` "
                f"{self.data.dataset_type}",
                settings=("grow", "dataset_type"),
            )
        if self.checkpoint_folder is None:
            raise UserError(
                "`grow` needs `save_checkpoint_path`: each day continues from the checkpoint of "
                "the day before",
                settings=("grow", "save_checkpoint_path"),
            )

    @property
    def checkpoint_folder(self) -> Path | None:
        """Folder of the run's checkpoints; None if none are saved."""
        if self.run.save_checkpoint_path is not None:
            path = Path(self.run.save_checkpoint_path)
            return Path(self.run.output_dir) / path if "output_dir" in self.explicit else path
        return Path(self.run.output_dir) if "output_dir" in self.explicit else None
