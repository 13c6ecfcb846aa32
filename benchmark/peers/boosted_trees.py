# SPDX-License-Identifier: Apache-2.0
"""Baseline of click prediction: gradient-boosted trees of LightGBM."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from preproc.clicks.schema.row_format import NUM_NUMERICAL

LEAVES = (15, 31, 63)
"""Leaves of a tree to try; the validation loss chooses."""

_ROUNDS = 2000
_PATIENCE = 100
_SETTINGS = {
    "objective": "binary",
    "learning_rate": 0.03,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    # Strong smoothing of categories, most of which occur a few times.
    "cat_smooth": 50.0,
    "cat_l2": 50.0,
    "max_cat_threshold": 64,
    "num_threads": 1,
    "verbose": -1,
    "seed": 1,
}


def features(lines: Sequence[bytes], counted: int) -> npt.NDArray[np.float64]:
    """Returns the 13 numbers and 26 categories of Criteo rows: [B, 39].

    Args:
        lines: raw rows.
        counted: how many rows, from the first, train: a category that occurs once in them, or
            never, is missing, others are numbered by frequency.
    """
    rows = [line.rstrip(b"\r\n").split(b"\t")[1:] for line in lines]
    columns = np.full((len(rows), len(rows[0])), np.nan)
    for column in range(columns.shape[1]):
        values = np.array([row[column] for row in rows])
        present = values != b""
        if column < NUM_NUMERICAL:
            columns[present, column] = values[present].astype(np.float64)
            continue
        names, counts = np.unique(values[:counted][present[:counted]], return_counts=True)
        kept = names[counts > 1][np.argsort(-counts[counts > 1], kind="stable")]
        number = {name: float(i) for i, name in enumerate(kept.tolist())}
        columns[:, column] = [number.get(value, np.nan) for value in values.tolist()]
    return columns


def predict(
    rows: npt.NDArray[np.float64], labels: npt.NDArray[np.bool_], split: tuple[int, int]
) -> tuple[npt.NDArray[np.float64], str]:
    """Trains with early stopping; returns probabilities of the test rows.

    Args:
        rows: [B, 39] from `features`.
        labels: [B].
        split: ends of the training and of the validation rows.

    Returns:
        Probabilities, and the settings that the validation rows chose.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError("LightGBM is missing: pip install -e .[benchmark]") from error

    first, second = split
    categorical = list(range(NUM_NUMERICAL, rows.shape[1]))

    def dataset(chosen: slice) -> lightgbm.Dataset:
        return lightgbm.Dataset(
            rows[chosen], labels[chosen], categorical_feature=categorical, free_raw_data=False
        )

    best = (np.inf, np.empty(0), "")
    for leaves in LEAVES:
        model = lightgbm.train(
            _SETTINGS | {"num_leaves": leaves},
            dataset(slice(first)),
            _ROUNDS,
            valid_sets=[dataset(slice(first, second))],
            callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False)],
        )
        loss = model.best_score["valid_0"]["binary_logloss"]
        if loss < best[0]:
            chosen = f"{leaves} leaves, {model.best_iteration} trees"
            best = (loss, np.asarray(model.predict(rows[second:])), chosen)
    return best[1], best[2]
