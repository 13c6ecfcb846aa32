# SPDX-License-Identifier: Apache-2.0
"""The item tables of a model, as tables with row updates."""

from collections.abc import Collection

from torch import nn

from bert4rec.model.network import Bert4Rec
from bert4rec.nn.item_lookup import ItemLookup
from recsys.train.row_optimizer import RowGradients, RowLookups, StoredTable


class ItemRows:
    """Takes item tables out of autograd and collects row gradients.

    Args:
        model: changed: the tables require no gradient any more.
        wanted: `embedding`, `head` (nothing where it is tied) and `bias`, or some of them.

    Attributes:
        names: of the tables.
        dims: columns of each.
    """

    def __init__(self, model: Bert4Rec, wanted: Collection[str]) -> None:
        tables: dict[str, tuple[nn.Parameter | None, ItemLookup]] = {
            "embedding": (model.embedding.items, model.embedding.lookup),
            "head": (model.head.weight, model.head.lookup),
            "bias": (model.head.bias, model.head.bias_lookup),
        }
        chosen = {
            name: (parameter, lookup)
            for name, (parameter, lookup) in tables.items()
            if name in wanted and parameter is not None
        }
        self.names = list(chosen)
        self._parameters = [parameter for parameter, _ in chosen.values()]
        self.dims = [parameter[0].numel() for parameter in self._parameters]
        self._lookups = [RowLookups() for _ in chosen]
        for (parameter, lookup), lookups in zip(chosen.values(), self._lookups, strict=True):
            parameter.requires_grad_(False)
            lookup.lookups = lookups

    def stored_tables(self) -> list[StoredTable]:
        """Returns the tables; the bias is one with a single column."""
        return [StoredTable(p.detach().view(p.shape[0], -1)) for p in self._parameters]

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients that backward left, and forgets them."""
        return [
            gradients for i, lookups in enumerate(self._lookups) for gradients in lookups.take(i)
        ]
