# SPDX-License-Identifier: Apache-2.0
"""Baselines that a test compares a model with."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recsys.data.sequences.histories import Sequences
from recsys.models.registry import FITTED
from recsys.ratings.fitted.model import FittedModel

if TYPE_CHECKING:
    from recsys.ratings.ranking.report import Baseline

COUNTED_BASELINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "markov": ("markov", {}),
    "item_knn": ("item_knn", {}),
    "ease": ("ease", {}),
    "ease_recent": ("ease", {"ridge": 500.0, "last_items": 20}),
}
"""Baselines that count over the histories: name -> (model, its settings)."""


def fit_baseline(name: str, sequences: Sequences) -> FittedModel[Any]:
    """Fits a counting baseline.

    Raises:
        UserError: the baseline needs more memory than there is.
    """
    of_model, settings = COUNTED_BASELINES[name]
    model = FITTED[of_model].load()
    return model.fit(sequences, model.settings_class(**settings))


BASELINES: "Mapping[str, Baseline]" = {
    **{name: functools.partial(fit_baseline, name) for name in COUNTED_BASELINES},
    "recent": None,
}
"""Baselines of a test by name. `ease` is as published: all items of a history weigh the same."""
