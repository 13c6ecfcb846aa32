# SPDX-License-Identifier: Apache-2.0
"""The models of ratings that are fitted in one call, one entry each.

A model's module is imported only when the model is used: SciPy takes a tenth of a second to import,
torch takes seconds.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.ratings.fitted.model import FittedModel


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A registered model.

    Attributes:
        module: module that holds the class.
        class_name: name of the `FittedModel`.
        title: name in sentences.
        summary: description for the help.
        flags: names of its own settings that the help shows first, separated by spaces.
    """

    module: str
    class_name: str
    title: str
    summary: str
    flags: str

    def load(self) -> "type[FittedModel[Any]]":
        """Imports the class."""
        found: type[FittedModel[Any]] = getattr(
            importlib.import_module(self.module), self.class_name
        )
        return found


FITTED: Mapping[str, Entry] = {
    "markov": Entry(
        "recsys.models.markov",
        "Markov",
        "Markov chain",
        "Which items follow each item of a history, weighted by distance",
        "window first_power next_power last_items decay",
    ),
    "item_knn": Entry(
        "recsys.models.item_knn",
        "ItemKnn",
        "ItemKNN",
        "The nearest neighbours of the items of a history, by their users",
        "neighbours shrinkage last_items decay",
    ),
    "ease": Entry(
        "recsys.models.ease",
        "Ease",
        "EASE",
        "A linear model of all items of a history, solved in closed form",
        "ridge last_items decay",
    ),
    "gru": Entry(
        "recsys.models.gru",
        "Gru",
        "GRU",
        "A recurrent network, trained to predict the next item",
        "emb_dim dropout last_items lr",
    ),
}
"""Name -> model."""
