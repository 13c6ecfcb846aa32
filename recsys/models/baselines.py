# SPDX-License-Identifier: Apache-2.0
"""Models by name, and the baselines that a test compares with."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recsys.models.ease import Ease
from recsys.models.item_knn import ItemKnn
from recsys.models.markov import Markov
from recsys.ratings.counted.model import ItemToItem

if TYPE_CHECKING:
    from recsys.ratings.ranking.report import Baseline

COUNTED: Mapping[str, type[ItemToItem[Any]]] = {
    model.name: model for model in (Markov, ItemKnn, Ease)
}
"""Models that are fitted by counting."""


def _fitted_by(model: type[ItemToItem[Any]], **settings: Any) -> "Baseline":
    return functools.partial(model.fit, settings=model.settings_class(**settings))


BASELINES: "Mapping[str, Baseline]" = {
    **{name: _fitted_by(model) for name, model in COUNTED.items()},
    "ease_recent": _fitted_by(Ease, ridge=500.0, last_items=20),
    "recent": None,
}
"""Baselines of a test by name. `ease` is as published, with all items of a history alike."""
