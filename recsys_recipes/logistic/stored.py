# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of logistic regressions."""

import dataclasses
from pathlib import Path

import torch

from dlrm.model.clicks import StoredClicks
from dlrm.model.groups import WEIGHT, table_group
from dlrm.model.weights import num_tables
from dlrm.nn.embedding import load_table
from recsys.train.checkpoint import read_checkpoint
from recsys_recipes.logistic.config import LogisticSettings
from recsys_recipes.logistic.fit import GROUP
from recsys_recipes.logistic.kind import LOGISTIC
from recsys_recipes.logistic.network import LogisticNetwork


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredLogistic(StoredClicks):
    """A checkpoint of a logistic regression; see `StoredClicks`.

    Attributes:
        settings: settings of the model.
    """

    settings: LogisticSettings

    @classmethod
    def open(cls, path: Path) -> "StoredLogistic":
        """Opens a checkpoint, or the folder of a run.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or of another model.
        """
        checkpoint = read_checkpoint(path)
        checkpoint.require_model(LOGISTIC.name, LOGISTIC.title)
        tables = range(num_tables(checkpoint))
        checkpoint.check_groups({GROUP, *map(table_group, tables)})
        return cls(
            path=checkpoint.path,
            step=None,
            table_sizes=tuple(checkpoint.shape_of(table_group(i), WEIGHT)[0] for i in tables),
            values=checkpoint.state,
            checkpoint=checkpoint,
            settings=checkpoint.section(LogisticSettings),
        )

    @property
    def num_numerical(self) -> int:
        """M, numerical features of a row."""
        return self.checkpoint.shape_of(GROUP, "edges")[0]

    @property
    def hash_indices(self) -> bool:
        """Whether ids are taken modulo the rows of their table."""
        return self.settings.hash_indices

    def load(self, *, has_lists: bool = False) -> LogisticNetwork:
        """Loads the model with its weights; see `StoredClicks`."""
        edges = self.checkpoint.shape_of(GROUP, "edges")
        network = LogisticNetwork(
            self.table_sizes, *edges, hash_indices=self.hash_indices, has_lists=has_lists
        )
        self.checkpoint.copy_into(GROUP, network.linear_state())
        for i, rows in enumerate(self.table_sizes):
            expected = {WEIGHT: torch.empty((rows, 1), device="meta")}
            stored = self.checkpoint.tensors_like(table_group(i), expected)
            load_table(network.embeddings, i, stored[WEIGHT])
        return network
