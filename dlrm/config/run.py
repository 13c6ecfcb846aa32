# SPDX-License-Identifier: Apache-2.0
"""Settings of a run: mode, steps, evaluations, checkpoints."""

import dataclasses
from typing import Literal

from recsys.errors import UserError
from recsys.settings import Not, require_known, require_not_negative, require_positive, setting
from recsys.train.config import RunSettings

_BASELINES = ("logistic_regression", "lightgbm")

Mode = Literal["train", "test", "predict", "inference_benchmark"]
BestBy = Literal["auc", "log_loss"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(RunSettings):
    """Mode, length, evaluation, devices, log and checkpoints of a run."""

    mode: Mode = setting(
        "train",
        "Task to run; test prints AUC, log loss, normalised entropy and calibration (predicted "
        "clicks divided by clicks: above 1, the model predicts too many)",
        resumable=True,
    )
    epochs: int = setting(1, "Number of epochs to train for", resumable=True)
    test_after: float = setting(
        0.0,
        "Do not test the model before this many epochs are completed",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    patience: int | None = setting(
        None,
        "Stop after this many evaluations in a row that are not better than the best one "
        "(--best_by); with --reset_embeddings, only those at the ends of epochs count, and each "
        "end is evaluated",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    best_by: BestBy = setting(
        "auc",
        "Metric that compares evaluations, for the best checkpoint, --patience and "
        "--plateau_factor; log_loss stops before the probabilities overfit",
    )
    auc_threshold: float | None = setting(
        None,
        "Stop training when this AUC is reached",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    placement: str | None = setting(
        None,
        "JSON file with the placement of the tables on several processes, written by python -m "
        "dlrm.scripts.plan_placement; by default, the run plans one",
        resumable=True,
    )
    deterministic: bool = setting(
        False,
        "Add up what a batch contributes in an order that does not depend on the number of "
        "processes: 1, 2 or 4 of them with any number of threads and any placement of the tables "
        "train the same bytes on processors of the same kind. On CPUs, in float32",
        used_with={"mode": ("train", "test")},
    )
    cuda_graphs: bool = setting(
        False,
        "Capture the whole training step in a CUDA graph and replay it; in "
        "--mode inference_benchmark, the prediction for each batch size",
        resumable=True,
        used_with={"mode": ("train", "inference_benchmark")},
    )
    print_freq: int = setting(
        200,
        "Optimizer steps between prints of the training status",
        resumable=True,
    )
    load_checkpoint_path: str | None = setting(
        None,
        "Checkpoint to load: one step_* folder, the folder of a run (loads its best evaluated "
        "checkpoint), or a folder in NVIDIA's layout",
        resumable=True,
    )
    gauc_by: str | None = setting(
        None,
        "Also report the AUC within the groups of this categorical feature (GAUC), such as the "
        "user, or of a schema's group. Skips id 0 if it means missing, rare or unseen",
        resumable=True,
        used_with={"mode": ("test",)},
    )
    baselines: tuple[str, ...] = setting(
        _BASELINES,
        "Models to compare with in a test and at the end of training, in addition to the constant "
        f"click rate: {' | '.join(_BASELINES)}. They are fitted to the training rows in seconds, "
        "in runs of one process; lightgbm only if it is installed. Empty turns this off, which is "
        "the default under --run_benchmark",
        resumable=True,
        used_with={"mode": ("train", "test")},
    )
    grow: bool = setting(
        False,
        "Train on the days of a dataset that grows (recsys-recipes prepare clicks --extend), one "
        "after the other; tables grow with it. --resume continues with the days that are new. A "
        "new row starts with values that depend on its category, not on the day",
        used_with={"mode": ("train",)},
    )
    progressive: bool = setting(
        False,
        "With --grow: test the model on each day before it is trained on it, in place of "
        "--eval_split; new categories get the vector of unknown ones, as when the model is served",
        used_with={"grow": Not(False)},
    )
    table_memory: int | None = setting(
        None,
        "Keep the embedding tables and the state of their optimizer in files on disk, with at most "
        "about this much of them in memory (such as 4GiB), for tables that do not fit. The result "
        "is the same. The files are in the folder of the checkpoints or, without one, in TMPDIR; "
        "on one process, on a CPU, with --embedding_type joint_fused and float32",
        resumable=True,
        unit="bytes",
    )
    predictions: str | None = setting(
        None,
        "File for the predictions of --eval_split: row, label, probability, logit, and the file "
        "and line of the raw log; .csv or .parquet",
        resumable=True,
        used_with={"mode": ("predict",)},
    )
    save_checkpoint_path: str | None = setting(
        None,
        "Folder in which to save the checkpoints of training",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    output_dir: str = setting(
        "/tmp",
        "If given without --save_checkpoint_path, the folder in which to save checkpoints; a "
        "relative --save_checkpoint_path is inside it",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    inference_benchmark_batch_sizes: tuple[int, ...] = setting(
        (1, 64, 4096),
        "Batch sizes at which to measure the throughput and latency of inference",
        resumable=True,
        used_with={"mode": ("inference_benchmark",)},
    )
    inference_benchmark_steps: int = setting(
        200,
        "Steps over which to measure the throughput and latency of inference",
        resumable=True,
        used_with={"mode": ("inference_benchmark",)},
    )

    def __post_init__(self) -> None:
        """Refuses unknown baselines, and counts and thresholds out of range."""
        RunSettings.__post_init__(self)
        require_known(self, "baselines", _BASELINES)
        require_positive(self, "epochs", "inference_benchmark_steps")
        if self.table_memory is not None:
            require_positive(self, "table_memory")
        require_not_negative(self, "test_after")
        if self.auc_threshold is not None and not 0 < self.auc_threshold <= 1:
            raise UserError(
                f"`auc_threshold` must lie in (0, 1], got {self.auc_threshold}",
                setting="auc_threshold",
            )
        if self.auc_threshold is not None and self.best_by != "auc":
            raise UserError(
                f"`auc_threshold` ends a run by its best AUC, but `best_by` is {self.best_by}: "
                "remove one of them",
                settings=("auc_threshold", "best_by"),
            )
