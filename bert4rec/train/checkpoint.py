# SPDX-License-Identifier: Apache-2.0
"""What a BERT4Rec checkpoint holds, and how it is put back."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bert4rec.config import Bert4RecConfig
from bert4rec.model.network import Bert4Rec
from bert4rec.train.step import Bert4RecTrainStep
from training.checkpoint import Checkpoint, CheckpointError, CheckpointFolder, read_checkpoint
from training.distributed import ALONE, Processes
from training.loop import LoopState

logger = logging.getLogger(__name__)

_MODEL, _OPTIMIZER, _ITEM_OPTIMIZER = "model", "optimizer", "item_optimizer"

_MAY_DIFFER_ON_RESUME = frozenset(
    {
        "mode", "num_epochs", "max_steps", "test_freq", "patience", "base_device", "num_threads",
        "print_freq", "log_path", "export_root", "save_freq", "load_checkpoint_path", "resume",
        "benchmark_warmup_steps", "inference_benchmark_batch_sizes", "inference_benchmark_steps",
        "recommend_input", "top_k", "val_batch_size", "test_batch_size", "metric_ks",
        "num_eval_negatives", "choose_by", "bootstrap_samples", "dataset_path",
    }
)  # fmt: skip
"""Settings that change what is watched or where, not the parameters a run arrives at."""


def save_run(
    folder: CheckpointFolder,
    config: Bert4RecConfig,
    num_items: int,
    model: Bert4Rec,
    step: Bert4RecTrainStep,
    state: LoopState,
    is_best: bool,
    processes: Processes = ALONE,
) -> None:
    """Saves everything that a resumed run needs; what it draws follows from the batch numbers.

    Every process must call it; the first one writes.
    """
    values = dataclasses.asdict(state) | {"num_items": num_items}
    if state.best_metric == float("-inf"):
        values["best_metric"] = None
    with step.whole_tables():
        groups = {_MODEL: _parameters(model), _OPTIMIZER: step.optimizer.state()}
        item_state = step.item_state()
        if item_state:
            groups[_ITEM_OPTIMIZER] = item_state
        if processes.is_first:
            folder.save(state.step, groups, values, config.to_dict(), is_best)
    processes.barrier()


def load_weights(path: Path, model: Bert4Rec) -> None:
    """Puts the weights of a checkpoint into a model.

    Raises:
        CheckpointError: it is missing or damaged, or a shape differs.
    """
    checkpoint = read_checkpoint(path)
    logger.info("Loading %s", checkpoint.path)
    _copy(checkpoint, _MODEL, _parameters(model))


def resume_run(
    folder: CheckpointFolder, config: Bert4RecConfig, model: Bert4Rec, step: Bert4RecTrainStep
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
    now = config.to_dict()
    differing = [
        f"--{name} (was {checkpoint.config.get(name)}, now {value})"
        for name, value in now.items()
        if name not in _MAY_DIFFER_ON_RESUME and checkpoint.config.get(name) != value
    ]
    if differing:
        raise CheckpointError(
            f"{checkpoint.path}: was made with other settings, so the run cannot continue from "
            f"it: {'; '.join(differing)}. Repeat the settings, or start anew with "
            "--load_checkpoint_path"
        )
    with step.whole_tables():
        _copy(checkpoint, _MODEL, _parameters(model))
        _copy(checkpoint, _OPTIMIZER, step.optimizer.state())
        item_state = step.item_state()
        if item_state:
            _copy(checkpoint, _ITEM_OPTIMIZER, item_state)
        step.load_item_state(item_state)
    values = {k: v for k, v in checkpoint.state.items() if k != "num_items"}
    if values["best_metric"] is None:
        values["best_metric"] = float("-inf")
    return LoopState(**values)


def _parameters(model: Bert4Rec) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def _copy(checkpoint: Checkpoint, group: str, tensors: Mapping[str, Tensor]) -> None:
    stored = checkpoint.tensors(group)
    for name, tensor in tensors.items():
        if name not in stored:
            raise CheckpointError(
                f"{checkpoint.path}: {group} has no tensor {name!r}; it was made by another kind "
                "of model or optimizer"
            )
        if stored[name].shape != tensor.shape:
            raise CheckpointError(
                f"{checkpoint.path}: {group}, {name}: the checkpoint has shape "
                f"{list(stored[name].shape)}, the model {list(tensor.shape)}; the model flags or "
                "the dataset differ from those of the checkpoint"
            )
        tensor.copy_(stored[name])
