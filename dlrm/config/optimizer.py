# SPDX-License-Identifier: Apache-2.0
"""Optimizers, the schedule of the rate, and precision."""

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
        "Learning rate warmup factor. Must be a non-negative integer",
        used_with={"warmup_steps": Not(0)},
    )
    warmup_steps: int = setting(6400, "Number of warmup optimization steps")
    decay_start_step: int | None = setting(
        64000,
        "Optimization step after which to start decaying the learning rate, if None will start "
        "decaying right after the warmup phase is completed",
        used_with={"decay_steps": Not(0)},
    )
    decay_steps: int = setting(
        80000, "Polynomial learning rate decay steps. If equal to 0 will not do any decaying"
    )
    decay_power: int = setting(
        2, "Polynomial learning rate decay power", used_with={"decay_steps": Not(0)}
    )
    decay_end_lr: float = setting(0.0, "LR after the decay ends", used_with={"decay_steps": Not(0)})
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
        "that do not occur shrink too, so that a step takes time by the rows of the tables: for "
        "those that are small (0.1 for ids that occur often)",
    )
    reset_embeddings: bool = setting(
        False,
        "Draw the embeddings anew before each epoch but the first: the MLPs train for several "
        "epochs, the embeddings for one, so that rare ids are not memorised (MEDA, "
        "arXiv:2305.19531)",
    )
    plateau_factor: float = setting(
        1.0,
        "Factor of the learning rate after each evaluation without a better one; "
        "with --reset_embeddings those at the ends of epochs",
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
                "one of them",
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
        "Type of the matrix products under --amp; bfloat16 needs no loss scale",
        used_with={"amp": Not(False)},
    )
    loss_scale: float = setting(
        1024.0,
        "Static loss scale for Mixed Precision Training",
        used_with={"amp": Not(False), "amp_dtype": ("float16",)},
    )
    tf32: bool = setting(
        False, "Multiply float32 matrices as TF32 (10 bits of mantissa) on a GPU", resumable=True
    )
    quantize: Literal["none", "int8"] = setting(
        "none",
        "int8: test or measure the model with 8-bit tables and MLPs too (CPU), calibrated on the "
        "first training rows; --mode test prints what it costs",
        resumable=True,
    )

    def __post_init__(self) -> None:
        """Refuses loss scales that are not positive."""
        if not self.loss_scale > 0:
            raise UserError(
                f"`loss_scale` must be positive, got {self.loss_scale}", setting="loss_scale"
            )
