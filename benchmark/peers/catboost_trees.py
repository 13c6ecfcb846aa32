# SPDX-License-Identifier: Apache-2.0
"""Gradient-boosted trees of CatBoost, an optional package: `make catboost`."""

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.data.click_columns import ClickColumns
from recsys.models.logistic.regression import Floats
from recsys.models.logistic.rows import SplitRows

_MOST_TREES, _PATIENCE = 1000, 50


def has_catboost() -> bool:
    """Returns True if CatBoost is installed."""
    return importlib.util.find_spec("catboost") is not None


def catboost_logits(
    train: SplitRows, validation: SplitRows, tested: SplitRows, threads: int
) -> Floats:
    """Fits trees with CatBoost's defaults until the loss of validation rows rises.

    Columns of lists are left out.

    Args:
        train: training rows.
        validation: rows that choose the number of trees.
        tested: rows to predict.
        threads: number of threads.

    Returns:
        [B] logits of the tested rows.
    """
    import catboost

    model = catboost.CatBoostClassifier(
        iterations=_MOST_TREES,
        early_stopping_rounds=_PATIENCE,
        random_seed=1,
        thread_count=threads,
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(_pool(train), eval_set=_pool(validation))
    logits = model.predict(_pool(tested), prediction_type="RawFormulaVal", thread_count=threads)
    return np.asarray(logits, np.float64)


def _pool(rows: SplitRows) -> Any:
    """Returns the numbers and ids of rows in CatBoost's format."""
    from catboost import FeaturesData, Pool

    first = rows.blocks[0]
    numbers = np.concatenate([block.numerical for block in rows.blocks]).astype(np.float32)
    features = FeaturesData(
        num_feature_data=np.ascontiguousarray(numbers) if first.numerical.shape[1] else None,
        cat_feature_data=np.concatenate([_ids(b) for b in rows.blocks])
        if first.categorical
        else None,
    )
    return Pool(features, rows.labels.astype(np.int8))


def _ids(block: ClickColumns) -> npt.NDArray[np.object_]:
    """Returns [B, F] ids as the texts that CatBoost takes for categories."""
    return np.column_stack([column.astype("S").astype(object) for column in block.categorical])
