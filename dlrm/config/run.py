# SPDX-License-Identifier: Apache-2.0
"""The course of a run: mode, steps, evaluations, checkpoints."""

import dataclasses
from typing import Literal

from recsys.errors import UserError
from recsys.settings import (
    joined,
    require_below,
    require_not_negative,
    require_positive,
    require_threads,
    setting,
)
from recsys.train.origin import ignore_fingerprint

Mode = Literal["train", "test", "predict", "inference_benchmark"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Mode, length, evaluation, devices, log and checkpoints of a run."""

    mode: Mode = setting(
        "train",
        "Select task to be performed; test prints AUC, log loss, normalised entropy and "
        "calibration, the predicted clicks over the clicks: above 1 too many are predicted",
        resumable=True,
    )
    seed: int = setting(12345, "Random seed")
    epochs: int = setting(1, "Number of epochs to train for", resumable=True)
    max_steps: int | None = setting(
        None, "Stop training after doing this many optimization steps", resumable=True
    )
    test_freq: int | None = setting(
        None,
        "Number of optimization steps between validations. If None will test after each epoch",
        resumable=True,
    )
    test_after: float = setting(
        0.0, "Don't test the model unless this many epochs has been completed", resumable=True
    )
    patience: int | None = setting(
        None,
        "Stop after this many evaluations in a row without a better AUC; with "
        "--reset_embeddings only those at the ends of epochs count, and each end is evaluated",
        resumable=True,
    )
    auc_threshold: float | None = setting(
        None, "Stop the training after achieving this AUC", resumable=True
    )
    base_device: Literal["auto", "cuda", "cpu"] = setting(
        "auto",
        "Device to run the majority of the model operations; auto takes CUDA if present",
        resumable=True,
    )
    placement: str | None = setting(
        None,
        "JSON file with the placement of the tables on several processes, as python -m "
        "dlrm.scripts.plan_placement writes it; by default it is planned",
        resumable=True,
    )
    process_timeout: float = setting(
        60.0,
        "Seconds without a heartbeat of one of several processes after which the run ends with an "
        "error that names that process; 0 waits for ever",
        resumable=True,
    )
    cuda_graphs: bool = setting(
        False,
        "Capture the whole training step in a CUDA graph and replay it; in "
        "--mode inference_benchmark, the prediction for each batch size",
        resumable=True,
    )
    print_freq: int = setting(
        200,
        "Number of optimizations steps between printing training status to stdout",
        resumable=True,
    )
    log_path: str = setting(
        "./log.json",
        "Destination for the log file with various results and statistics",
        resumable=True,
    )
    load_checkpoint_path: str | None = setting(
        None,
        "Path from which to load a checkpoint: one step_* folder, the folder of a run (its best "
        "evaluated checkpoint is taken), or a folder in NVIDIA's layout",
        resumable=True,
    )
    gauc_by: str | None = setting(
        None,
        "Also report the AUC grouped by this categorical feature (GAUC), such as the user, or by "
        "the group of a schema. Id 0 is skipped if it means missing, rare or unseen",
        resumable=True,
    )
    predictions: str | None = setting(
        None,
        "File that --mode predict writes for --eval_split: row, label, probability, logit, and the "
        "file and line of the raw log; .csv or .parquet",
        resumable=True,
    )
    save_checkpoint_path: str | None = setting(
        None, "Path to which to save the training checkpoints", resumable=True
    )
    output_dir: str = setting(
        "/tmp",
        "Path where to save the checkpoints when it is given without --save_checkpoint_path; a "
        "relative --save_checkpoint_path is taken inside it",
        resumable=True,
    )
    save_freq: int | None = setting(
        None,
        "Number of optimization steps between checkpoints, besides those at the best evaluation, "
        "at the end and on SIGTERM, SIGINT or SIGHUP",
        resumable=True,
    )
    checkpoint_format: Literal["native", "nvidia"] = setting(
        "native",
        "Layout of the checkpoints; nvidia holds weights only, so such a run cannot be resumed",
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    resume: bool = setting(
        False,
        "Continue the run saved under --save_checkpoint_path, if there is one",
        resumable=True,
    )
    benchmark_warmup_steps: int = setting(
        0, "Number of initial iterations to exclude from throughput measurements", resumable=True
    )
    inference_benchmark_batch_sizes: tuple[int, ...] = setting(
        (1, 64, 4096),
        "Batch sizes for inference throughput and latency measurements",
        resumable=True,
    )
    inference_benchmark_steps: int = setting(
        200, "Number of steps for measuring inference latency and throughput", resumable=True
    )
    num_threads: int | None = setting(
        None, "CPU threads of a step; by default one per core", resumable=True
    )

    def __post_init__(self) -> None:
        """Refuses counts and thresholds out of range."""
        require_positive(self, "epochs", "print_freq", "inference_benchmark_steps")
        for name in ("max_steps", "test_freq", "save_freq", "patience"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        require_below(self, "seed", 2**63)
        require_threads(self, "num_threads")
        require_not_negative(self, "test_after", "benchmark_warmup_steps", "process_timeout")
        if self.auc_threshold is not None and not 0 < self.auc_threshold <= 1:
            raise UserError(f"`auc_threshold` must lie in (0, 1], got {self.auc_threshold}")
        sizes = self.inference_benchmark_batch_sizes
        if not sizes or min(sizes) < 1:
            raise UserError(
                f"`inference_benchmark_batch_sizes` must be positive, got {joined(sizes)!r}"
            )
