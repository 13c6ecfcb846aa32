# SPDX-License-Identifier: Apache-2.0
"""Saves and loads the weights of a DLRM, for training and export.

Tables are stored per feature, so a checkpoint depends neither on `embedding_type` nor on the
placement of the tables.
"""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import ModelConfig
from dlrm.model import nvidia_checkpoint
from dlrm.model.memory import TableRows, loaded_memory
from dlrm.model.network import Dlrm, DlrmNetwork
from dlrm.nn.embedding import LookupsT, load_table, read_tables
from recsys.settings import section_from_dict
from recsys.train.checkpoint import Checkpoint, CheckpointError, RowShard, read_checkpoint
from recsys.train.memory import require_memory
from recsys.train.origin import Origin, check_same_dataset

logger = logging.getLogger(__name__)

MLP_GROUP = "mlp"
WEIGHT = "weight"


_ROW_STATE = frozenset(
    name for rule in ROW_RULES.values() for name in (*rule.row_state, *rule.element_state)
)
"""Tensors that training leaves beside the weight of a table."""


def table_group(index: int) -> str:
    """Names the group of a feature's table in a checkpoint."""
    return f"embedding_{index}"


def weights_of(model: DlrmNetwork[LookupsT]) -> dict[str, dict[str, Tensor]]:
    """Returns {group: {name: tensor}} of this process's weights and shards."""
    groups = {MLP_GROUP: model.mlp_state()}
    for i, table in read_tables(model.embeddings).items():
        groups[table_group(i)] = {WEIGHT: table}
    return groups


def row_shards(model: DlrmNetwork[LookupsT]) -> dict[str, RowShard]:
    """Returns the rows of this process for the groups of row-wise tables."""
    return {
        table_group(i): RowShard(shard.rows.start, shard.rows.step, shard.rows.stop)
        for i, shard in model.embeddings.shards().items()
        if shard.rows.step > 1
    }


def load_weights(path: Path, model: DlrmNetwork[LookupsT]) -> None:
    """Loads the weights of a checkpoint into a model.

    Args:
        path: a checkpoint of this project, or a folder in NVIDIA's layout.
        model: network whose weights are overwritten.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or a shape differs.
    """
    if nvidia_checkpoint.is_nvidia_checkpoint(path):
        nvidia_checkpoint.load(path, model)
        return
    checkpoint = read_checkpoint(path)
    logger.info("Loading %s", checkpoint.path)
    load_model(checkpoint, model)


def load_model(checkpoint: Checkpoint, model: DlrmNetwork[LookupsT]) -> None:
    """Loads the weights of an opened checkpoint into a model.

    Raises:
        CheckpointError: a file is missing or damaged, a shape differs, or the checkpoint holds more
            than the model.
    """
    embeddings = model.embeddings
    if (stored_tables := _num_tables(checkpoint)) != len(embeddings.table_sizes):
        raise CheckpointError(
            f"{checkpoint.path}: holds {stored_tables} embedding tables, the model has "
            f"{len(embeddings.table_sizes)}; name the dataset of the training"
        )
    checkpoint.copy_into(MLP_GROUP, model.mlp_state())
    for i in embeddings.shards():
        group = table_group(i)
        shape = torch.Size((embeddings.table_sizes[i], embeddings.embedding_dim))
        stored = checkpoint.tensors_shaped(group, {WEIGHT: shape}, _ROW_STATE.__contains__)
        load_table(embeddings, i, stored[WEIGHT])
    model.train(model.training)  # drops copies of the weights before


def model_settings(path: Path) -> dict[str, Any]:
    """Reads the model's settings of a checkpoint.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    if nvidia_checkpoint.is_nvidia_checkpoint(path):
        return nvidia_checkpoint.read_settings(path)[0]
    return read_checkpoint(path).settings(ModelConfig)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """The model of a checkpoint, without its weights.

    Attributes:
        path: folder of the checkpoint itself.
        step: number of training steps.
        config: settings of the model.
        table_sizes: rows of each stored table.
    """

    path: Path
    step: int
    config: ModelConfig
    table_sizes: tuple[int, ...]

    def load(self) -> Dlrm:
        """Loads the model with its weights, in evaluation mode on the CPU.

        Raises:
            CheckpointError: a file is missing or damaged, or a shape differs.
            OutOfMemoryError: it does not fit in memory.
        """
        names = [f"table {i}" for i in range(len(self.table_sizes))]
        rows = TableRows.of_model(self.config, names, self.table_sizes)
        require_memory(loaded_memory(self.config, rows, len(names)))
        model = Dlrm(self.config, self.table_sizes)
        load_weights(self.path, model)
        return model.eval()


def stored_table_sizes(path: Path) -> tuple[int, ...]:
    """Reads the number of rows of each table in a checkpoint.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    if nvidia_checkpoint.is_nvidia_checkpoint(path):
        return nvidia_checkpoint.table_sizes(path)
    checkpoint = read_checkpoint(path)
    return tuple(
        checkpoint.shape_of(table_group(i), WEIGHT)[0] for i in range(_num_tables(checkpoint))
    )


def _num_tables(checkpoint: Checkpoint) -> int:
    return sum(group.startswith(table_group(0)[:-1]) for group in checkpoint.groups())


def check_dataset(path: Path, now: Origin, dataset: str, *, ignore_fingerprint: bool) -> None:
    """Refuses a checkpoint trained on another dataset; see `check_same_dataset`.

    Args:
        path: checkpoint, as for `describe_model`.
        now: dataset to use it with, see `OpenedDataset.origin`.
        dataset: name of the dataset, for the error message.
        ignore_fingerprint: compare the sizes of the tables alone.

    Raises:
        CheckpointError: the datasets differ, or the checkpoint is missing or damaged.
    """
    stored = stored_table_sizes(path)
    if not stored:
        raise CheckpointError(f"{path}: holds no embedding tables: not a checkpoint of DLRM")
    if len(stored) == len(now.sizes):
        sizes = dict(zip(now.sizes, stored, strict=True))
    else:
        sizes = {"categorical features": len(stored)}
        now = Origin({"categorical features": len(now.sizes)})
    check_same_dataset(
        path,
        Origin.of_checkpoint(sizes, stored_values(path)),
        now,
        dataset,
        "name the dataset of the training with `dataset`, and repeat its `max_table_size`",
        ignore_fingerprint=ignore_fingerprint,
    )


def stored_values(path: Path) -> Mapping[str, Any]:
    """Reads the plain values beside the weights; none of NVIDIA's own checkpoints."""
    if not nvidia_checkpoint.is_nvidia_checkpoint(path):
        return read_checkpoint(path).state
    try:
        return nvidia_checkpoint.read_metadata(path)[1]
    except CheckpointError:
        return {}


def describe_model(path: Path) -> StoredModel:
    """Reads the model of a checkpoint, without its weights.

    Args:
        path: a checkpoint, the folder of a run, or a folder in NVIDIA's layout.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or of another model.
    """
    if nvidia_checkpoint.is_nvidia_checkpoint(path):
        settings, step = nvidia_checkpoint.read_settings(path)
        config, folder = _model_config(path, settings), path
    else:
        checkpoint = read_checkpoint(path)
        config = _model_config(checkpoint.path, checkpoint.settings(ModelConfig))
        step, folder = checkpoint.count("step", 0), checkpoint.path
    sizes = stored_table_sizes(path)
    return StoredModel(path=folder, step=step, config=config, table_sizes=sizes)


def _model_config(path: Path, settings: Mapping[str, Any]) -> ModelConfig:
    missing = {"bottom_mlp_sizes", "top_mlp_sizes", "embedding_dim"} - settings.keys()
    if missing:
        raise CheckpointError(
            f"{path}: its settings have no {', '.join(sorted(missing))}: not a checkpoint of DLRM"
        )
    # apex depends on the machine and is for training.
    return section_from_dict(ModelConfig, {**settings, "optimized_mlp": False})
