# SPDX-License-Identifier: Apache-2.0
"""Settings of the run: mode, duration, files, processes."""

import dataclasses
from typing import Literal

from recsys.settings import require_positive, setting
from recsys.train.config import RunSettings

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
        "Collect garbage after each epoch and return unused memory to the system and, on a GPU, to "
        "other processes",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    activation_checkpointing: bool = setting(
        False,
        "Store only the inputs of the blocks and recompute the blocks in backward: the same "
        "result with less memory and more time",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    torch_compile: bool = setting(
        False,
        "Compile the layers of a training step, once for all batch sizes",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    cuda_graphs: bool = setting(
        False,
        "Capture the whole training step in a CUDA graph for each size of a batch, and replay it",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    grow: bool = setting(
        False,
        "Train on the days of ratings that grow (recsys-recipes prepare ratings --extend), one "
        "after the other, each in a folder of its own inside --export_root. --resume continues "
        "with the days that are new",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    progressive: bool = setting(
        False,
        "Test the model of an earlier day on each user's first item of the dataset's last day, "
        "beside the popularity of the seven days before; items that are new since have no vector "
        "and rank last. In --mode test, or with --grow, before each day's training",
        resumable=True,
        used_with={"mode": ("train", "test")},
    )
    export_root: str = setting(
        "",
        "Folder of the checkpoints; empty saves none",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    use_torch_jit_trace: bool = setting(
        False,
        "Run the inference benchmark with the deployed network, traced by torch.jit; --mode train "
        "then also runs it, after the test",
        resumable=True,
        used_with={"mode": ("train", "inference_benchmark")},
    )

    def __post_init__(self) -> None:
        """Refuses counts below 1."""
        RunSettings.__post_init__(self)
        require_positive(self, "num_epochs")
