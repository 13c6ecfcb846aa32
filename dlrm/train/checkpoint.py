# SPDX-License-Identifier: Apache-2.0
"""What a DLRM checkpoint holds, and how it is put back.

Tables and their optimizer state are stored per feature, so a checkpoint does not depend on
--embedding_type and can be spread over devices differently when it is loaded.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dlrm.config import DlrmConfig
from dlrm.model import nvidia_checkpoint
from dlrm.model.single import Dlrm
from dlrm.train.step import DlrmTrainStep
from training.checkpoint import Checkpoint, CheckpointFolder, read_checkpoint
from training.loop import LoopState

logger = logging.getLogger(__name__)

_MLP, _MLP_OPTIMIZER, _RANDOM = "mlp", "mlp_optimizer", "random"

_MAY_DIFFER_ON_RESUME = frozenset(
    {
        "mode", "epochs", "max_steps", "test_freq", "test_after", "auc_threshold", "auc_device",
        "base_device", "print_freq", "log_path", "load_checkpoint_path", "save_checkpoint_path",
        "output_dir", "save_freq", "resume", "benchmark_warmup_steps", "num_threads",
        "inference_benchmark_batch_sizes", "inference_benchmark_steps", "dataset",
        "test_batch_size", "eval_split", "loader", "read_ahead", "synthetic_dataset_dir",
        "feature_spec", "cuda_graphs", "optimized_mlp",
    }
)  # fmt: skip
"""Settings that change what is watched or where, not the parameters a run arrives at."""


def _table_group(index: int) -> str:
    return f"embedding_{index}"


def _weights(model: Dlrm) -> dict[str, dict[str, Tensor]]:
    groups = {_MLP: model.mlp_state()}
    for i, table in enumerate(model.embeddings.tables()):
        groups[_table_group(i)] = {"weight": table}
    return groups


def _training_state(model: Dlrm, step: DlrmTrainStep) -> dict[str, dict[str, Tensor]]:
    """Returns the optimizers' tensors, in the groups of what they belong to."""
    groups: dict[str, dict[str, Tensor]] = {}
    if step.mlp_optimizer is not None:
        groups[_MLP_OPTIMIZER] = step.mlp_optimizer.state()
    if step.embedding_optimizer is not None:
        groups.setdefault(_MLP_OPTIMIZER, {})["embedding_steps"] = step.embedding_optimizer.steps
        state = step.embedding_optimizer.state
        for i in range(len(model.embeddings.table_sizes)):
            groups[_table_group(i)] = {}
        for name in state[0] if state else ():
            views = model.embeddings.per_feature([of_table[name] for of_table in state])
            for i, view in enumerate(views):
                groups[_table_group(i)][name] = view
    return groups


def save_run(
    folder: CheckpointFolder,
    config: DlrmConfig,
    model: Dlrm,
    step: DlrmTrainStep,
    state: LoopState,
    is_best: bool,
) -> None:
    """Saves everything that a resumed run needs."""
    groups = _weights(model)
    for group, tensors in _training_state(model, step).items():
        groups.setdefault(group, {}).update(tensors)
    groups[_RANDOM] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        groups[_RANDOM]["cuda"] = torch.cuda.get_rng_state()
    folder.save(state.step, groups, state.to_dict(), config.to_dict(), is_best)


def load_weights(path: Path, model: Dlrm) -> None:
    """Puts the weights of a checkpoint into a model.

    Args:
        path: a checkpoint of this project, or a folder in NVIDIA's layout.
        model: changed in place.

    Raises:
        CheckpointError: it is missing or damaged, or a shape differs.
    """
    if nvidia_checkpoint.is_nvidia_checkpoint(path):
        nvidia_checkpoint.load(path, model)
        return
    checkpoint = read_checkpoint(path)
    logger.info("Loading %s", checkpoint.path)
    _load_model(checkpoint, model)


def resume_run(
    folder: CheckpointFolder, config: DlrmConfig, model: Dlrm, step: DlrmTrainStep
) -> LoopState | None:
    """Puts a run back where its latest checkpoint left it.

    Returns:
        Where it stands; None where nothing was saved yet.

    Raises:
        CheckpointError: the checkpoint is damaged, or was made with other settings.
    """
    latest = folder.latest()
    if latest is None:
        return None
    checkpoint = read_checkpoint(latest)
    checkpoint.check_same_settings(config.to_dict(), _MAY_DIFFER_ON_RESUME)
    _load_model(checkpoint, model)
    for group, tensors in _training_state(model, step).items():
        checkpoint.copy_into(group, tensors)
    random = checkpoint.tensors(_RANDOM)
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])
    return LoopState.from_dict(checkpoint.state)


def model_settings(path: Path) -> dict[str, Any] | None:
    """Returns the settings stored with a checkpoint; None for NVIDIA's layout, which has none.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    if nvidia_checkpoint.is_nvidia_checkpoint(path):
        return None
    return read_checkpoint(path).config


def _load_model(checkpoint: Checkpoint, model: Dlrm) -> None:
    checkpoint.copy_into(_MLP, model.mlp_state())
    embeddings = model.embeddings
    for i, rows in enumerate(embeddings.table_sizes):
        group = _table_group(i)
        shape = torch.Size((rows, embeddings.embedding_dim))
        stored = checkpoint.tensors_shaped(group, {"weight": shape})
        embeddings.load_table(i, stored["weight"])
