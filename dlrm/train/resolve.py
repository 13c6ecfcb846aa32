# SPDX-License-Identifier: Apache-2.0
"""Fills in open settings from machine, dataset and checkpoint."""

import dataclasses

import torch

from dlrm.config import DlrmConfig, ModelConfig
from dlrm.model.weights import OpenedCheckpoint
from dlrm.nn.mlp import has_apex
from dlrm.train.graphs import check_graphable
from recsys.data.feature_spec import FeatureSpec
from recsys.errors import UserError
from recsys.train.recipe import adopt

_CHOSEN_BY_MACHINE = frozenset({"optimized_mlp"})
"""Model settings that depend on the machine and are not taken from a checkpoint."""


def take_model(config: DlrmConfig, checkpoint: OpenedCheckpoint) -> DlrmConfig:
    """Takes the model settings of the checkpoint that a run loads.

    Settings that the user gave are kept; each change is logged.
    """
    taken = {field.name for field in dataclasses.fields(ModelConfig)} - _CHOSEN_BY_MACHINE
    values = {name: value for name, value in checkpoint.settings.items() if name in taken}
    return adopt(config, values)


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
                f"spec of the dataset has {num_numerical}"
            )
        changes["num_numerical_features"] = num_numerical
    if config.model.optimized_mlp and not (device.type == "cuda" and has_apex()):
        if "optimized_mlp" in config.explicit:
            raise UserError(
                "`optimized_mlp` needs a CUDA device and NVIDIA's apex "
                "(https://github.com/NVIDIA/apex; PyPI's apex is another project)"
            )
        changes["optimized_mlp"] = False
    if config.run.cuda_graphs:
        check_graphable(config.model.embedding_type, device)
    if world_size > 1:
        _check_distributed(config)
    elif config.run.placement is not None:
        raise UserError("`placement` is for several processes, see dlrm.scripts.dist_main")
    return DlrmConfig.from_dict(config.to_dict() | changes, config.explicit)


def _check_distributed(config: DlrmConfig) -> None:
    if config.run.cuda_graphs:
        raise UserError("`cuda_graphs` captures the step of one device; drop it on several")
    if config.model.batch_norm and config.run.mode == "train":
        raise UserError(
            "`batch_norm` would normalise over the samples of each process alone: train it on one "
            "device"
        )
