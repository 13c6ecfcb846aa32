# SPDX-License-Identifier: Apache-2.0
"""Settings of the run: mode, duration, files, processes."""

import dataclasses
from typing import Literal

from recsys.errors import UserError
from recsys.settings import require_positive, setting
from recsys.train.config import RunSettings

ALL_USERS = "all"
"""Value of `recommend_users` that names every user of the dataset."""

Mode = Literal["train", "test", "inference_benchmark", "recommend", "ddp", "dmp"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(RunSettings):
    """Settings of the run: mode, duration, files, processes."""

    mode: Mode = setting("train", "Task; ddp and dmp train with that --parallelism", resumable=True)
    parallelism: Literal["ddp", "dmp"] = setting(
        "ddp",
        "Under torchrun: a copy of the model per process, or TorchRec's DistributedModelParallel "
        "with a sharded item table",
    )
    num_epochs: int = setting(100, "Epochs to train for", resumable=True)
    gc_after_epoch: bool = setting(
        False,
        "Collect garbage after each epoch and give memory that is not in use back: to the system, "
        "and on a GPU to other processes",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    activation_checkpointing: bool = setting(
        False,
        "Keep the inputs of the blocks alone and compute each again in backward: the same result "
        "in less memory and more time",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    torch_compile: bool = setting(
        False,
        "Compile the layers of a training step, once for all batch sizes",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    export_root: str = setting(
        "",
        "Folder of the checkpoints; empty saves none",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    use_torch_jit_trace: bool = setting(
        False,
        "Run the inference benchmark with the network that is deployed, traced by torch.jit; "
        "--mode train then runs it too, after the test",
        resumable=True,
        used_with={"mode": ("train", "inference_benchmark")},
    )
    recommend_input: str | None = setting(
        None,
        "Histories for --mode recommend, raw item ids, oldest first, one history per line; by "
        "default standard input",
        resumable=True,
        used_with={"mode": ("recommend",)},
    )
    recommend_users: str = setting(
        "",
        "Users of the dataset for --mode recommend, in place of --recommend_input: raw ids with "
        "commas between, or all",
        resumable=True,
        used_with={"mode": ("recommend",)},
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
        used_with={"mode": ("recommend",)},
    )

    def __post_init__(self) -> None:
        """Refuses counts below 1, and two sources of histories."""
        RunSettings.__post_init__(self)
        if self.recommend_users and self.recommend_input is not None:
            raise UserError(
                "`recommend_users` and `recommend_input` exclude each other",
                settings=("recommend_users", "recommend_input"),
            )
        require_positive(self, "num_epochs", "top_k")
