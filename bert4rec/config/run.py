# SPDX-License-Identifier: Apache-2.0
"""Settings of the run: mode, duration, files, processes."""

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

ALL_USERS = "all"
"""Value of `recommend_users` that names every user of the dataset."""

Mode = Literal["train", "test", "inference_benchmark", "recommend", "ddp", "dmp"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Settings of the run: mode, duration, files, processes."""

    mode: Mode = setting("train", "Task; ddp and dmp train with that --parallelism", resumable=True)
    parallelism: Literal["ddp", "dmp"] = setting(
        "ddp",
        "Under torchrun: a copy of the model per process, or TorchRec's DistributedModelParallel "
        "with a sharded item table",
    )
    process_timeout: float = setting(
        60.0,
        "Seconds without a heartbeat of one of several processes after which the run ends with an "
        "error that names that process; 0 waits for ever",
        resumable=True,
    )
    num_epochs: int = setting(100, "Epochs to train for", resumable=True)
    max_steps: int | None = setting(None, "Stop after this many steps", resumable=True)
    test_freq: int | None = setting(
        None, "Steps between validations; by default one per epoch", resumable=True
    )
    patience: int | None = setting(
        None, "Stop after this many validations without a better one", resumable=True
    )
    seed: int = setting(12345, "Random seed")
    base_device: Literal["auto", "cuda", "cpu"] = setting(
        "auto", "Device of the model; auto takes CUDA if present", resumable=True
    )
    num_threads: int | None = setting(
        None, "CPU threads of a step; by default one per core", resumable=True
    )
    gc_after_epoch: bool = setting(
        False,
        "Collect garbage after each epoch and give memory that is not in use back: to the system, "
        "and on a GPU to other processes",
        resumable=True,
    )
    activation_checkpointing: bool = setting(
        False,
        "Keep the inputs of the blocks alone and compute each again in backward: the same result "
        "in less memory and more time",
        resumable=True,
    )
    torch_compile: bool = setting(
        False,
        "Compile the layers of a training step, once for all batch sizes",
        resumable=True,
    )
    print_freq: int = setting(100, "Steps between lines of progress", resumable=True)
    log_path: str = setting("./log.json", "Destination of the log of metrics", resumable=True)
    export_root: str = setting("", "Folder of the checkpoints; empty saves none", resumable=True)
    save_freq: int | None = setting(
        None, "Steps between checkpoints, besides the best and last", resumable=True
    )
    load_checkpoint_path: str | None = setting(
        None, "Checkpoint, or folder of a run, to load", resumable=True
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    resume: bool = setting(
        False, "Continue the run saved under --export_root, if there is one", resumable=True
    )
    benchmark_warmup_steps: int = setting(
        0, "First steps to leave out of the throughput", resumable=True
    )
    inference_benchmark_batch_sizes: tuple[int, ...] = setting(
        (1, 64, 1024), "Batch sizes of --mode inference_benchmark", resumable=True
    )
    use_torch_jit_trace: bool = setting(
        False,
        "Run the inference benchmark with the network that is deployed, traced by torch.jit; "
        "--mode train then runs it too, after the test",
        resumable=True,
    )
    recommend_input: str | None = setting(
        None,
        "Histories for --mode recommend, raw item ids, oldest first, one history per line; by "
        "default standard input",
        resumable=True,
    )
    recommend_users: str = setting(
        "",
        "Users of the dataset for --mode recommend, in place of --recommend_input: raw ids with "
        "commas between, or all",
        resumable=True,
    )
    top_k: int = setting(
        10,
        "Items of a list: of --mode recommend for a history, of a test for a user",
        resumable=True,
    )
    output_format: Literal["auto", "table", "json"] = setting(
        "auto",
        "Output of --mode recommend: tables, JSON lines, or by auto tables on a terminal alone",
        resumable=True,
    )

    @property
    def inference_benchmark_steps(self) -> int:
        """Steps of each inference benchmark."""
        return 100

    def __post_init__(self) -> None:
        """Refuses counts and intervals below 1, and two sources of histories."""
        if self.recommend_users and self.recommend_input is not None:
            raise UserError("`recommend_users` and `recommend_input` exclude each other")
        require_positive(self, "num_epochs", "print_freq", "top_k")
        require_not_negative(self, "seed", "process_timeout")
        require_below(self, "seed", 2**63)
        require_threads(self, "num_threads")
        for name in ("max_steps", "test_freq", "save_freq", "patience"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        sizes = self.inference_benchmark_batch_sizes
        if not sizes or min(sizes) < 1:
            raise UserError(
                f"`inference_benchmark_batch_sizes` must be positive, got {joined(sizes)!r}"
            )
