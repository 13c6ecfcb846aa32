# SPDX-License-Identifier: Apache-2.0
"""Saves and loads the weights of a DLRM, for training and export.

Tables are stored per feature, so that a checkpoint does not depend on `embedding_type` or on the
placement of the tables.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_ext.row_rules import ROW_RULES
from dlrm.config import ModelConfig
from dlrm.model.clicks import StoredClicks
from dlrm.model.groups import MLP_GROUP, MLP_OPTIMIZER_GROUP, WEIGHT, table_group
from dlrm.model.memory import TableRows, loaded_memory
from dlrm.model.network import Dlrm, DlrmNetwork
from dlrm.model.nvidia_checkpoint import is_nvidia_checkpoint, open_nvidia_checkpoint
from dlrm.nn.bags import BaggedEmbedding
from dlrm.nn.embedding import LookupsT, load_table, read_tables
from recsys.settings import section_from_dict
from recsys.train.checkpoint import (
    MODEL,
    Checkpoint,
    CheckpointError,
    RowShard,
    read_checkpoint,
)
from recsys.train.memory import require_memory

logger = logging.getLogger(__name__)

_ROW_STATE = frozenset(
    name for rule in ROW_RULES.values() for name in (*rule.row_state, *rule.element_state)
)
"""Names of the tensors that training stores with the weight of a table."""


def weights_of(model: DlrmNetwork[LookupsT]) -> dict[str, dict[str, Tensor]]:
    """Returns {group: {name: tensor}} of this process's weights and shards."""
    groups = {MLP_GROUP: model.mlp_state()}
    for i, table in read_tables(model.embeddings).items():
        groups[table_group(i)] = {WEIGHT: table}
    return groups


def row_shards(model: DlrmNetwork[LookupsT]) -> dict[str, RowShard]:
    """Returns this process's rows of the groups of row-wise tables."""
    return {
        table_group(i): RowShard(shard.rows.start, shard.rows.step, shard.rows.stop)
        for i, shard in model.embeddings.shards().items()
        if shard.rows.step > 1
    }


def load_model(
    checkpoint: Checkpoint,
    model: DlrmNetwork[LookupsT],
    stored_rows: Sequence[int] | None = None,
) -> None:
    """Loads the weights of an opened checkpoint into a model.

    Args:
        checkpoint: the checkpoint.
        model: the model to change.
        stored_rows: rows of each table in the checkpoint, if tables have grown since; their later
            rows stay as they are.

    Raises:
        CheckpointError: a file is missing or damaged, a shape differs, or the checkpoint contains
            tensors that the model does not have.
    """
    embeddings = model.embeddings
    if (stored_tables := num_tables(checkpoint)) != len(embeddings.table_sizes):
        raise CheckpointError(
            f"{checkpoint.path}: contains {stored_tables} embedding tables, but the model has "
            f"{len(embeddings.table_sizes)}; use the dataset of the training",
            path=checkpoint.path,
        )
    checkpoint.copy_into(MLP_GROUP, model.mlp_state())
    for i in embeddings.shards():
        group = table_group(i)
        rows = embeddings.table_sizes if stored_rows is None else stored_rows
        shape = (rows[i], embeddings.embedding_dim)
        expected = {WEIGHT: torch.empty(shape, dtype=torch.float32, device="meta")}
        stored = checkpoint.tensors_like(group, expected, _ROW_STATE.__contains__)
        load_table(embeddings, i, stored[WEIGHT])
    model.train(model.training)  # drops copies of the old weights


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DlrmCheckpoint(StoredClicks):
    """A DLRM's checkpoint; see `StoredClicks`.

    Attributes:
        settings: settings of the model stored in the checkpoint, {name: value}.
    """

    step: int
    settings: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "DlrmCheckpoint":
        """Opens a checkpoint, the folder of a run, or a folder in NVIDIA's layout.

        Raises:
            CheckpointError: the checkpoint is missing or damaged.
            UserError: a setting has another type.
        """
        is_nvidia = is_nvidia_checkpoint(path)
        return cls.of(open_nvidia_checkpoint(path) if is_nvidia else read_checkpoint(path))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "DlrmCheckpoint":
        """Reads settings and sizes of a checkpoint's model.

        Raises:
            CheckpointError: the checkpoint belongs to another model, or a file is missing or
                damaged.
            UserError: a setting has another type.
        """
        if MODEL in checkpoint.state:  # folders in NVIDIA's layout do not name a model
            checkpoint.require_model("dlrm", "DLRM")
        if MLP_GROUP not in checkpoint.groups():
            raise CheckpointError(
                f"{checkpoint.path}: contains no tensors {MLP_GROUP!r}: not a checkpoint of DLRM",
                path=checkpoint.path,
            )
        tables = range(num_tables(checkpoint))
        checkpoint.check_groups({MLP_GROUP, MLP_OPTIMIZER_GROUP, *map(table_group, tables)})
        return cls(
            path=checkpoint.path,
            step=checkpoint.count("step", 0),
            settings=checkpoint.settings(ModelConfig),
            table_sizes=tuple(checkpoint.shape_of(table_group(i), WEIGHT)[0] for i in tables),
            values=checkpoint.state,
            checkpoint=checkpoint,
        )

    @property
    def config(self) -> ModelConfig:
        """Settings of the model.

        Raises:
            CheckpointError: the checkpoint belongs to another model.
        """
        missing = {"bottom_mlp_sizes", "top_mlp_sizes", "embedding_dim"} - self.settings.keys()
        if missing:
            raise CheckpointError(
                f"{self.path}: its settings have no {', '.join(sorted(missing))}: not a checkpoint "
                "of DLRM",
                path=self.path,
            )
        # apex depends on the machine and is only used in training.
        return section_from_dict(ModelConfig, {**self.settings, "optimized_mlp": False})

    @property
    def num_numerical(self) -> int:
        """M, number of numerical features in a row."""
        return self.config.num_numerical_features

    @property
    def hash_indices(self) -> bool:
        """Whether ids are reduced modulo the number of rows in their table."""
        return self.config.hash_indices

    def load_into(self, model: DlrmNetwork[LookupsT]) -> None:
        """Loads the weights into a model.

        Raises:
            CheckpointError: a file is missing or damaged, or a shape differs.
        """
        logger.info("Loading %s", self.path)
        load_model(self.checkpoint, model)

    def load(self, *, has_lists: bool = False) -> Dlrm:
        """Loads the model with its weights; see `StoredClicks`."""
        config, names = self.config, [f"table {i}" for i in range(len(self.table_sizes))]
        rows = TableRows.of_model(config, names, self.table_sizes)
        require_memory(loaded_memory(config, rows, len(names)))
        bagged = BaggedEmbedding.of(config, self.table_sizes) if has_lists else None
        model = Dlrm(config, self.table_sizes, bagged)
        self.load_into(model)
        return model.eval()


def num_tables(checkpoint: Checkpoint) -> int:
    """Returns the number of tables in a checkpoint."""
    return sum(group.startswith(table_group(0)[:-1]) for group in checkpoint.groups())
