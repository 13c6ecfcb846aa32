# SPDX-License-Identifier: Apache-2.0
"""Fills in unset settings from the machine, the dataset and a checkpoint."""

import dataclasses
import logging
import math
from collections.abc import Sequence

import torch

from cuda_ext import library
from dlrm.config import DlrmConfig, ModelConfig
from dlrm.config.model import combinations_of
from dlrm.model.weights import DlrmCheckpoint
from dlrm.nn.fixed_products import has_fixed_products
from dlrm.nn.mlp import has_apex
from dlrm.nn.shards import NUM_SHARDS
from recsys.data.feature_spec import FeatureSpec
from recsys.errors import UserError
from recsys.train.recipe import adopt

logger = logging.getLogger(__name__)

_PRESETS = {"criteo_sample": 200_000, "small": 10**7, "kaggle": math.inf}
"""Name of a preset -> most training rows that it suits."""
_MOST_COMBINATIONS = 1 << 62
"""Most ids and pairs of ids that `id_statistics` can number."""
_CHOSEN_BY_MACHINE = frozenset({"optimized_mlp"})
"""Model settings that depend on the machine; they are not taken from a checkpoint."""


def take_model(config: DlrmConfig, checkpoint: DlrmCheckpoint) -> DlrmConfig:
    """Returns the settings with those of the checkpoint's model and tables.

    Settings that the user gave are kept; each change is logged.
    """
    taken = {field.name for field in dataclasses.fields(ModelConfig)} - _CHOSEN_BY_MACHINE
    values = {name: value for name, value in checkpoint.settings.items() if name in taken}
    return adopt(config, values | {"num_embeddings_per_feature": checkpoint.given_sizes})


def resolve(
    config: DlrmConfig, device: torch.device, spec: FeatureSpec, world_size: int = 1
) -> DlrmConfig:
    """Adapts the defaults to the machine and the dataset.

    Args:
        config: settings as the user gave them.
        device: device of this process.
        spec: features of the dataset.
        world_size: number of processes of the run.

    Raises:
        UserError: an explicit setting contradicts the machine or the dataset.
    """
    changes: dict[str, object] = {"base_device": device.type}
    num_numerical = len(spec.numerical)
    if num_numerical != config.model.num_numerical_features:
        if "num_numerical_features" in config.explicit:
            raise UserError(
                f"`num_numerical_features` {config.model.num_numerical_features}, but the feature "
                f"spec of the dataset has {num_numerical}",
                setting="num_numerical_features",
            )
        changes["num_numerical_features"] = num_numerical
    if config.model.optimized_mlp and not (device.type == "cuda" and has_apex()):
        if "optimized_mlp" in config.explicit:
            raise UserError(
                "`optimized_mlp` needs a CUDA device and NVIDIA's apex "
                "(https://github.com/NVIDIA/apex; PyPI's apex is another project)",
                setting="optimized_mlp",
            )
        changes["optimized_mlp"] = False
    if spec.lists:
        _check_lists(config)
    if config.model.id_statistics:
        _check_statistics(config.model.capped(spec.table_sizes))
    if config.run.cuda_graphs:
        _check_graphable(config.model.embedding_type, device)
    if config.run.deterministic:
        _check_deterministic(device, spec, world_size)
    if world_size > 1:
        _check_distributed(config)
    elif config.run.placement is not None:
        raise UserError(
            "`placement` needs several processes, see dlrm.scripts.dist_main", setting="placement"
        )
    return DlrmConfig.from_dict(config.to_dict() | changes, config.explicit)


def _check_statistics(table_sizes: Sequence[int]) -> None:
    if not table_sizes:
        raise UserError(
            "`id_statistics`: the dataset has no categorical features", setting="id_statistics"
        )
    if (combinations := sum(combinations_of(table_sizes))) > _MOST_COMBINATIONS:
        raise UserError(
            f"`id_statistics`: {combinations:,} ids and pairs of ids cannot be numbered in 64 "
            "bits; smaller tables (`max_table_size` with `hash_indices`) have fewer",
            settings=("id_statistics", "max_table_size", "hash_indices"),
        )


def _check_lists(config: DlrmConfig) -> None:
    """Refuses settings that models with lists do not support yet."""
    wrong = {
        f"`embedding_type` {config.model.embedding_type}": (
            config.model.embedding_type != "joint_fused"
        ),
        "`cuda_graphs`": config.run.cuda_graphs,
        f"`quantize` {config.precision.quantize}": config.precision.quantize != "none",
        "`id_statistics`": config.model.id_statistics > 0,
    }
    if names := [name for name, is_wrong in wrong.items() if is_wrong]:
        raise UserError(f"a dataset with lists does not support {', '.join(names)} yet")


def _check_distributed(config: DlrmConfig) -> None:
    if config.run.mode == "predict":
        raise UserError(
            "predictions are made in one process; start it without torchrun", setting="mode"
        )
    if config.run.gauc_by is not None:
        raise UserError(
            f"`gauc_by` {config.run.gauc_by} runs in one process; start it without torchrun",
            setting="gauc_by",
        )
    if config.precision.quantize != "none":
        raise UserError(
            "`quantize` int8 runs in one process; start it without torchrun", setting="quantize"
        )
    if config.model.id_statistics:
        raise UserError(
            "`id_statistics` runs in one process; start it without torchrun",
            setting="id_statistics",
        )
    if config.run.cuda_graphs:
        raise UserError(
            "`cuda_graphs` captures the step of a single device; remove it to train on several",
            setting="cuda_graphs",
        )
    if config.model.batch_norm and config.run.mode == "train":
        raise UserError(
            "`batch_norm` would normalise the samples of each process separately: train on one "
            "device",
            setting="batch_norm",
        )


def _check_deterministic(device: torch.device, spec: FeatureSpec, world_size: int) -> None:
    """Refuses a run whose bytes would depend on the number of processes or threads."""
    if device.type != "cpu":
        raise UserError(
            f"`deterministic` is for CPUs, not {device.type}: set `base_device` cpu",
            settings=("deterministic", "base_device"),
        )
    if NUM_SHARDS % world_size:
        raise UserError(
            f"`deterministic` cuts each batch into {NUM_SHARDS} shards, which {world_size} "
            "processes cannot share: start 1, 2 or 4",
            setting="deterministic",
        )
    if spec.lists:
        raise UserError(
            "`deterministic` does not support a dataset with lists, whose vectors arrive in parts",
            setting="deterministic",
        )
    if not has_fixed_products():
        raise UserError(
            "`deterministic` needs a torch that multiplies with MKL, and the environment variable "
            "MKL_CBWR=AUTO,STRICT before the first product (the command line sets it): the bits of "
            "products depend on the number of threads otherwise",
            setting="deterministic",
        )


def _check_graphable(embedding_type: str, device: torch.device) -> None:
    if device.type != "cuda":
        raise UserError(
            f"`cuda_graphs` needs a CUDA device; this run uses {device.type}", setting="cuda_graphs"
        )
    if embedding_type != "joint_fused":
        raise UserError(
            "`cuda_graphs` needs `embedding_type` joint_fused: sparse gradients cannot be captured",
            settings=("cuda_graphs", "embedding_type"),
        )
    if library.path_of("cuda") != "compiled":
        raise UserError(
            "`cuda_graphs` needs the extension's CUDA kernels: the updates in plain PyTorch count "
            "the distinct ids of a batch, which a captured graph cannot do. They are missing: "
            f"{library.why_not_compiled('cuda')}",
            setting="cuda_graphs",
        )


def refuse_batch_of_one(num_rows: int, batch_size: int) -> None:
    """Refuses a last batch of one row, which `batch_norm` cannot normalise."""
    if num_rows % batch_size == 1 or batch_size == 1:
        raise UserError(
            "`batch_norm` needs at least two rows to normalise, but with `batch_size` "
            f"{batch_size} the last batch of the {num_rows} rows has one: use `drop_last` or "
            "another `batch_size`",
            settings=("batch_norm", "batch_size", "drop_last"),
        )


def check_warmup(config: DlrmConfig, steps: int, num_rows: int) -> None:
    """Refuses a run that would end during the default warm-up; warns if `warmup_steps` was given.

    Args:
        config: settings of the run.
        steps: number of steps of the run.
        num_rows: number of rows of the training split.

    Raises:
        UserError: the run would end during the warm-up.
    """
    run, warmup = config.run, config.optimizer.warmup_steps
    if steps >= warmup or config.data.is_synthetic:
        return
    message = (
        f"the run has {steps} steps, but the warm-up takes {warmup}: the learning rate would not "
        f"exceed {steps / warmup:.3g} of `lr`."
    )
    if "warmup_steps" in config.explicit:
        logger.warning("%s Train for more steps, or lower `warmup_steps`", message)
        return
    preset = next(name for name, most_rows in _PRESETS.items() if num_rows <= most_rows)
    message += (
        f" The defaults suit the Terabyte log: for {num_rows:,} training rows, use `preset` "
        f"{preset}"
    )
    if run.max_steps is None and not run.resume:
        raise UserError(
            f"{message}, or set `warmup_steps` to train like this anyway", setting="warmup_steps"
        )
    logger.warning("%s", message)
