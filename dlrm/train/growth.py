# SPDX-License-Identifier: Apache-2.0
"""Tables that grow with their dataset, day by day."""

from collections.abc import Sequence
from typing import Any

import torch

from dlrm.config import DlrmConfig
from dlrm.data.opened import OpenedDataset
from dlrm.nn.embedding import Embeddings
from dlrm.nn.keyed_rows import initial_rows
from recsys.data.categories import category_numbers

INITIAL_STD = 0.01
"""Standard deviation of new rows without `embedding_init`. It cannot depend on the size of the
table, which grows."""


@torch.no_grad()
def serve_new_rows(embeddings: Embeddings[Any], known: Sequence[int]) -> None:
    """Gives new categories the vector of id 0, as a server does that does not know them.

    Args:
        embeddings: the tables.
        known: rows of each table that are kept.
    """
    stored = embeddings.stored_tables()
    for feature, shard in embeddings.shards().items():
        rows = shard.view(stored)
        rows[known[feature] :] = rows[0]


@torch.no_grad()
def draw_new_rows(
    embeddings: Embeddings[Any], dataset: OpenedDataset, config: DlrmConfig, known: Sequence[int]
) -> None:
    """Draws the rows of categories that are new; the row of id 0 starts at zero.

    Args:
        embeddings: the tables.
        dataset: the day, with the dictionaries of its ids.
        config: settings of the run.
        known: rows of each table that are kept.
    """
    std = config.model.embedding_init or INITIAL_STD
    stored = embeddings.stored_tables()
    for feature, shard in embeddings.shards().items():
        ids, first = embeddings.table_sizes[feature], known[feature]
        if first == ids:
            continue
        rows, name = shard.view(stored), dataset.spec.table_names[feature]
        if first == 0:
            rows[0].zero_()
            first = 1
        numbers = category_numbers(dataset.root, feature, ids)[first - 1 :]
        drawn = initial_rows(config.run.seed, name, numbers, embeddings.embedding_dim, std)
        rows[first:].copy_(drawn)
