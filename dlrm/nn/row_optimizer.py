# SPDX-License-Identifier: Apache-2.0
"""The optimizer of the embedding tables: it changes the rows of a batch and no others."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_ext import ops
from cuda_ext.ops import RowOptimizer
from dlrm.nn.embedding import Embeddings, RowGradients


class RowwiseOptimizer:
    """Applies the row gradients of embeddings, of whatever type, to their tables.

    Args:
        embeddings: the tables.
        rule: `sgd`, `rowwise_adagrad`, `adagrad` or `adam`.
        weight_decay: on the rows that occur.
        loss_scale: the gradients are divided by it.

    Attributes:
        state: one dict of tensors per stored table.
        steps: scalar float32 tensor, optimizer steps that were applied.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        rule: RowOptimizer,
        weight_decay: float,
        loss_scale: float = 1.0,
    ) -> None:
        self._embeddings = embeddings
        self._rule = rule
        self._weight_decay = weight_decay
        tables = [table.values for table in embeddings.stored_tables()]
        self.state = [ops.row_optimizer_state(rule, table) for table in tables]
        device = tables[0].device if tables else torch.device("cpu")
        self.steps = torch.zeros((), device=device)
        self._inverse_scale = (
            None if loss_scale == 1.0 else torch.tensor(1 / loss_scale, device=device)
        )

    def gradients(self) -> list[RowGradients]:
        """Takes the gradients that backward left."""
        return self._embeddings.take_row_gradients()

    @torch.no_grad()
    def step(
        self, gradients: Sequence[RowGradients], lr: Tensor, overflow: Tensor | None = None
    ) -> None:
        """Applies gradients.

        Args:
            gradients: from `gradients`.
            lr: scalar float32 tensor on the device.
            overflow: scalar bool tensor; True changes nothing.
        """
        self.steps += 1 if overflow is None else (~overflow).to(self.steps.dtype)
        tables = self._embeddings.stored_tables()
        for found in gradients:
            table = tables[found.table]
            ops.update_rows(
                self._rule,
                table.values,
                self.state[found.table],
                found.rows,
                found.gradients,
                lr=lr,
                step=self.steps,
                weight_decay=self._weight_decay,
                inverse_scale=self._inverse_scale,
                overflow=overflow,
                table_low=table.low,
            )

    def state_per_feature(self) -> list[dict[str, Tensor]]:
        """Returns the state of each feature's table, as views: it does not depend on the type."""
        names = self.state[0].keys() if self.state else ()
        per_name = {
            name: self._embeddings.per_feature([state[name] for state in self.state])
            for name in names
        }
        return [
            {name: views[i] for name, views in per_name.items()}
            for i in range(len(self._embeddings.table_sizes))
        ]
