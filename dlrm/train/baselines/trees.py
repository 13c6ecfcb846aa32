# SPDX-License-Identifier: Apache-2.0
"""Gradient-boosted trees of LightGBM, which is an optional package."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.data.click_columns import ClickColumns
from recsys.models.logistic.regression import Floats
from recsys.models.logistic.rows import SplitRows

if TYPE_CHECKING:
    import lightgbm

_SETTINGS = {
    "objective": "binary",
    "learning_rate": 0.05,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
    "seed": 1,
}
_CANDIDATES = {
    "its defaults": {},
    "smoothed categories": {  # for ids that occur a few times each
        "min_data_in_leaf": 50,
        "feature_fraction": 0.6,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "cat_smooth": 50.0,
        "cat_l2": 50.0,
        "max_cat_threshold": 64,
    },
}
"""Settings to try; the loss on held-out rows chooses."""
_TRIED_TREES, _MOST_TREES = 100, 1000
_PATIENCE = 50


class NoLightGbmError(Exception):
    """LightGBM cannot be imported."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trees:
    """Fitted trees; lists are left out.

    Attributes:
        booster: LightGBM's model.
        shares_id_zero: whether id 0 means missing, rare and unseen values.
        chosen: describes the settings that the held-out rows chose.
    """

    booster: "lightgbm.Booster"
    shares_id_zero: bool
    chosen: str

    @classmethod
    def fit(
        cls,
        rows: SplitRows,
        held_out: SplitRows,
        threads: int,
        *,
        shares_id_zero: bool,
        refit: bool,
    ) -> "Trees":
        """Fits trees until the loss on held-out rows rises.

        Args:
            rows: training rows.
            held_out: rows that choose the settings and the number of trees.
            threads: number of threads.
            shares_id_zero: see the attribute.
            refit: whether to train again with the held-out rows, once both are chosen.

        Raises:
            NoLightGbmError: LightGBM is not installed or cannot be loaded.
        """
        try:
            import lightgbm
        except (ImportError, OSError) as error:  # OSError: a library that it needs is missing
            raise NoLightGbmError(str(error)) from error

        def dataset(some: SplitRows) -> lightgbm.Dataset:
            numbers, ids = some.blocks[0].numerical.shape[1], len(some.blocks[0].categorical)
            matrix = np.concatenate([_columns(block, shares_id_zero) for block in some.blocks])
            categories = list(range(numbers, numbers + ids))
            return lightgbm.Dataset(
                matrix,
                some.labels,
                categorical_feature=categories,
                params={"verbose": -1},
                free_raw_data=False,
            )

        fitted, held = dataset(rows), dataset(held_out)

        def train(name: str, most: int) -> lightgbm.Booster:
            return lightgbm.train(
                _SETTINGS | {"num_threads": threads} | _CANDIDATES[name],
                fitted,
                most,
                valid_sets=[held],
                callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False)],
            )

        tried = {name: train(name, _TRIED_TREES) for name in _CANDIDATES}
        best = min(tried, key=lambda name: tried[name].best_score["valid_0"]["binary_logloss"])
        booster = tried[best]
        if booster.num_trees() == _TRIED_TREES:
            booster = train(best, _MOST_TREES)
        count = booster.best_iteration
        if refit:
            settings = _SETTINGS | {"num_threads": threads} | _CANDIDATES[best]
            booster = lightgbm.train(settings, dataset(rows + held_out), count)
        words = f"{lightgbm.__version__}, {best}, {count} trees"
        return cls(booster, shares_id_zero, words)

    def logits(self, block: ClickColumns) -> Floats:
        """Returns [B] logits of rows."""
        columns = _columns(block, self.shares_id_zero)
        return np.asarray(self.booster.predict(columns, raw_score=True), np.float64)


def _columns(block: ClickColumns, shares_id_zero: bool) -> Any:
    """Returns [B, M + F] numbers and ids; a shared id 0 becomes NaN."""
    ids = [column.astype(np.float64) for column in block.categorical]
    if shares_id_zero:
        ids = [np.where(column == 0, np.nan, column) for column in ids]
    return np.column_stack([block.numerical.astype(np.float64), *ids])
