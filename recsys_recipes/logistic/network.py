# SPDX-License-Identifier: Apache-2.0
"""The logistic regression as a network: a weight for each id and each bin of a number."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dlrm.model.clicks import ClickModel
from dlrm.nn.bags import BaggedEmbedding
from dlrm.nn.embedding import JointEmbeddings, JointFusedEmbedding, load_table
from dlrm.serve.network import copy_weights
from recsys.models.logistic.regression import LogisticRegression

_TABLE = "table"
"""Name of the joint table among the weights."""


class LogisticNetwork(ClickModel[Any]):
    """Adds up the weights of a row's ids and bins.

    Args:
        table_sizes: ids of each categorical feature, lists last.
        num_numerical: M.
        num_edges: maximum number of edges of a numerical feature, K.
        hash_indices: take ids modulo these sizes.
        has_lists: take bags of ids.

    Attributes:
        embeddings: tables of one column.
        edges: [M, K] float32, ascending; if a feature has fewer, the last one is repeated.
        bins: [M, K + 1] float32, weights of the bins; the last one is repeated likewise.
        intercept: [] float32.
    """

    def __init__(
        self,
        table_sizes: Sequence[int],
        num_numerical: int,
        num_edges: int,
        *,
        hash_indices: bool,
        has_lists: bool,
    ) -> None:
        super().__init__()
        kind = BaggedEmbedding if has_lists else JointFusedEmbedding
        self.embeddings: JointEmbeddings[Any] = kind(table_sizes, 1, hash_indices)
        self.edges: Tensor
        self.bins: Tensor
        self.intercept: Tensor
        self.register_buffer("edges", torch.zeros(num_numerical, num_edges))
        self.register_buffer("bins", torch.zeros(num_numerical, num_edges + 1))
        self.register_buffer("intercept", torch.zeros(()))
        self.eval().requires_grad_(False)

    @classmethod
    def of(
        cls, model: LogisticRegression, *, hash_indices: bool, has_lists: bool
    ) -> "LogisticNetwork":
        """Returns the network of a fitted model."""
        edges, tables = model.one_hot.edges, model.weights_of_ids()
        num_edges = max(map(len, edges), default=0)
        network = cls(
            [len(table) for table in tables],
            len(edges),
            num_edges,
            hash_indices=hash_indices,
            has_lists=has_lists,
        )
        for number, (own, bins) in enumerate(zip(edges, model.weights_of_bins(), strict=True)):
            missing = num_edges - len(own)
            network.edges[number] = torch.from_numpy(np.pad(own, (0, missing), "edge"))
            network.bins[number] = torch.from_numpy(np.pad(bins, (0, missing), "edge"))
        network.intercept.fill_(model.intercept)
        for feature, table in enumerate(tables):
            load_table(network.embeddings, feature, torch.from_numpy(table)[:, None])
        return network

    @classmethod
    def of_weights(
        cls,
        weights: Mapping[str, Tensor],
        table_sizes: Sequence[int],
        *,
        hash_indices: bool,
        has_lists: bool,
    ) -> "LogisticNetwork":
        """Returns the network with the tensors of `weights`; the table is not copied."""
        linear = dict(weights)
        table, edges = linear.pop(_TABLE), linear["edges"].shape
        network = cls(table_sizes, *edges, hash_indices=hash_indices, has_lists=has_lists)
        copy_weights(network.linear_state(), linear)
        network.embeddings.weight = nn.Parameter(table, requires_grad=False)
        return network

    def weights(self) -> dict[str, Tensor]:
        """Returns all tensors by name."""
        (table,) = self.embeddings.stored_tables()
        return {_TABLE: table, **self.linear_state()}

    @property
    def id_limits(self) -> Sequence[int] | None:
        """Ids of each categorical feature; None if they are hashed."""
        return None if self.embeddings.hash_indices else self.embeddings.table_sizes

    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables in earlier batches; see `Embeddings`."""
        self.embeddings.raise_bad_ids()

    def linear_state(self) -> dict[str, Tensor]:
        """Returns all tensors except the table, by name."""
        return {"edges": self.edges, "bins": self.bins, "intercept": self.intercept}

    def forward(self, numerical: Tensor, ids: Any) -> Tensor:
        """Predicts clicks; see `ClickModel`."""
        logits = self.intercept.expand(numerical.shape[0])
        if len(self.edges):
            numbers = numerical.T.to(torch.float32).contiguous()
            bins = torch.searchsorted(self.edges, numbers, right=True)
            logits = logits + self.bins.gather(1, bins).sum(0)
        if self.embeddings.table_sizes:
            logits = logits + self.embeddings(ids, torch.float32).sum((1, 2))
        return logits
