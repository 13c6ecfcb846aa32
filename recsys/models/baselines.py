# SPDX-License-Identifier: Apache-2.0
"""Models by name, and the baselines that a test compares with."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recsys.data.sequences.histories import Sequences
from recsys.models.ease import Ease, EaseSettings
from recsys.models.item_knn import ItemKnn
from recsys.models.markov import Markov
from recsys.ratings.counted.model import ItemToItem

if TYPE_CHECKING:
    from recsys.ratings.ranking.report import Baseline

COUNTED: Mapping[str, type[ItemToItem[Any]]] = {
    model.name: model for model in (Markov, ItemKnn, Ease)
}
"""Models that are fitted by counting."""


COUNTED_BASELINES: Mapping[str, tuple[type[ItemToItem[Any]], Any]] = {
    **{name: (model, model.settings_class()) for name, model in COUNTED.items()},
    "ease_recent": (Ease, EaseSettings(ridge=500.0, last_items=20)),
}
"""Counted baselines by name, with their settings."""


def fit_baseline(name: str, sequences: Sequences) -> ItemToItem[Any]:
    """Fits a counted baseline by its name.

    Raises:
        UserError: it needs more memory than there is.
    """
    model, settings = COUNTED_BASELINES[name]
    return model.fit(sequences, settings)


BASELINES: "Mapping[str, Baseline]" = {
    **{name: functools.partial(fit_baseline, name) for name in COUNTED_BASELINES},
    "recent": None,
}
"""Baselines of a test by name. `ease` is as published, with all items of a history alike."""
