# SPDX-License-Identifier: Apache-2.0
"""Settings of optimizers, learning rate schedule and precision."""

import dataclasses
from typing import Literal

from cuda_ext import RowOptimizer
from recsys.errors import UserError
from recsys.settings import Not, require_not_negative, setting
from recsys.train.config import PrecisionSettings
from recsys.train.optimizers import AmpDtype


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Optimizers, learning rates and their schedule."""

    lr: float = setting(28.0, "Base learning rate")
    warmup_factor: int = setting(
        0,
        "Warmup factor of the learning rate, a non-negative integer",
        used_with={"warmup_steps": Not(0)},
    )
    warmup_steps: int = setting(6400, "Optimizer steps of the learning rate warmup")
    decay_start_step: int | None = setting(
        64000,
        "Optimizer step after which the learning rate decays; with None, right after the warmup",
        used_with={"decay_steps": Not(0)},
    )
    decay_steps: int = setting(
        80000, "Steps of the polynomial decay of the learning rate; 0 does not decay it"
    )
    decay_power: int = setting(
        2, "Power of the polynomial decay", used_with={"decay_steps": Not(0)}
    )
    decay_end_lr: float = setting(
        0.0, "Learning rate after the decay", used_with={"decay_steps": Not(0)}
    )
    optimizer: RowOptimizer = setting(
        "sgd",
        "Optimizer of embeddings and MLPs; with rowwise_adagrad the MLPs use Adagrad",
    )
    embedding_weight_decay: float = setting(
        0.0, "Weight decay of the embedding rows that occur in a batch"
    )
    embedding_l2: float = setting(
        0.0,
        "Adds this times half the squared norm of all embeddings to the loss of each batch. Rows "
        "that do not occur in the batch shrink too, so that a step takes time in proportion to "
        "all rows: for small tables (0.1 for ids that occur often)",
    )
    reset_embeddings: bool = setting(
        False,
        "Initialise the embeddings again before each epoch except the first: the MLPs train for "
        "several epochs, the embeddings for one, so that rare ids are not memorised (MEDA, "
        "arXiv:2305.19531)",
    )
    plateau_factor: float = setting(
        1.0,
        "Multiplies the learning rate after each evaluation that is not the best so far; with "
        "--reset_embeddings, only evaluations at the ends of epochs count",
    )

    def __post_init__(self) -> None:
        """Refuses negative learning rates and step counts."""
        require_not_negative(
            self, "lr", "warmup_factor", "warmup_steps", "decay_start_step",
            "decay_steps", "decay_power", "decay_end_lr", "embedding_weight_decay",
            "embedding_l2",
        )  # fmt: skip
        if self.embedding_l2 and self.embedding_weight_decay:
            raise UserError(
                "`embedding_l2` shrinks all rows, `embedding_weight_decay` those of the batch: set "
                "only one of them",
                settings=("embedding_l2", "embedding_weight_decay"),
            )
        if not 0 < self.plateau_factor <= 1:
            raise UserError(
                f"`plateau_factor` must lie in (0, 1], got {self.plateau_factor}",
                setting="plateau_factor",
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig(PrecisionSettings):
    """Mixed precision and its loss scale."""

    amp_dtype: AmpDtype = setting(
        "float16",
        "Type of matrix products under --amp; bfloat16 does not need a loss scale",
        used_with={"amp": Not(False)},
    )
    loss_scale: float = setting(
        1024.0,
        "Static loss scale for mixed precision",
        used_with={"amp": Not(False), "amp_dtype": ("float16",)},
    )
    tf32: bool = setting(
        False, "Multiply float32 matrices in TF32 (10 bits of mantissa) on a GPU", resumable=True
    )
    quantize: Literal["none", "int8"] = setting(
        "none",
        "int8: also test or measure the model with 8-bit tables and MLPs (CPU), calibrated on the "
        "first training rows; --mode test prints the loss of quality",
        resumable=True,
    )

    def __post_init__(self) -> None:
        """Refuses loss scales that are not positive."""
        if not self.loss_scale > 0:
            raise UserError(
                f"`loss_scale` must be positive, got {self.loss_scale}", setting="loss_scale"
            )
