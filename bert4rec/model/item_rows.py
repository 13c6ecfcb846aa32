# SPDX-License-Identifier: Apache-2.0
"""The item tables of a model as tables whose rows an optimizer changes."""

from torch import nn

from bert4rec.model.network import Bert4Rec
from bert4rec.nn.item_lookup import ItemLookup
from training.row_optimizer import RowGradients, RowLookups, StoredTable


class ItemRows:
    """Takes item tables out of autograd: their rows get gradients, the tables do not.

    Args:
        model: changed: the tables require no gradient any more.
        with_head: take out what the head compares with as well, its bias included; False where
            the loss needs all of it.

    Attributes:
        names: of the tables.
        dims: columns of each.
    """

    def __init__(self, model: Bert4Rec, *, with_head: bool) -> None:
        found: dict[str, tuple[nn.Parameter, ItemLookup]] = {
            "embedding": (model.embedding.items, model.embedding.lookup)
        }
        if with_head:
            if model.head.weight is not None:
                found["head"] = (model.head.weight, model.head.lookup)
            found["bias"] = (model.head.bias, model.head.bias_lookup)
        self.names = list(found)
        self._parameters = [parameter for parameter, _ in found.values()]
        self.dims = [parameter[0].numel() for parameter in self._parameters]
        self._lookups = [RowLookups() for _ in found]
        for (parameter, lookup), lookups in zip(found.values(), self._lookups, strict=True):
            parameter.requires_grad_(False)
            lookup.lookups = lookups

    def stored_tables(self) -> list[StoredTable]:
        """Returns the tables; the bias is one with a single column."""
        return [StoredTable(p.detach().view(p.shape[0], -1)) for p in self._parameters]

    def take_row_gradients(self) -> list[RowGradients]:
        """Returns the gradients that backward left, and forgets them."""
        return [found for i, lookups in enumerate(self._lookups) for found in lookups.take(i)]
