# SPDX-License-Identifier: Apache-2.0
"""Baseline of click prediction: logistic regression on hashed features."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from preproc.clicks.schema.row_format import NUM_NUMERICAL

HASH_BITS = 20
PENALTIES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.2)
"""Inverse strengths of the L2 penalty to try; the validation loss chooses."""


def hashed_features(lines: Sequence[bytes]) -> Any:
    """Hashes rows to one-hot features: scipy CSR [B, 2**HASH_BITS].

    A number above 2 becomes the category floor(ln(x)**2), as in the winning solution of the Kaggle
    contest (Juan et al. 2014, 3 Idiots' solution); a missing field is a category too.
    """
    import scipy.sparse

    columns = np.empty((len(lines), 39), np.int64)
    for row, line in enumerate(lines):
        fields = line.rstrip(b"\r\n").split(b"\t")[1:]
        for column, field in enumerate(fields):
            token = field
            if column < NUM_NUMERICAL and field and int(field) > 2:
                token = b"%d" % int(np.log(int(field)) ** 2)
            columns[row, column] = xxhash.xxh3_64_intdigest(token, seed=column) % 2**HASH_BITS
    offsets = np.arange(0, 39 * len(lines) + 1, 39)
    ones = np.ones(39 * len(lines))
    return scipy.sparse.csr_matrix(
        (ones, columns.ravel(), offsets), shape=(len(lines), 2**HASH_BITS)
    )


def predict(
    rows: Any, labels: npt.NDArray[np.bool_], split: tuple[int, int]
) -> tuple[npt.NDArray[np.float64], str]:
    """Fits every penalty to `hashed_features`; otherwise as `boosted_trees.predict`."""
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import log_loss
    except ImportError as error:
        raise ImportError("scikit-learn is missing: pip install -e .[benchmark]") from error

    first, second = split
    best = (np.inf, np.empty(0), "")
    for inverse in PENALTIES:
        model = LogisticRegression(C=inverse, solver="liblinear").fit(rows[:first], labels[:first])
        loss = log_loss(labels[first:second], model.predict_proba(rows[first:second])[:, 1])
        if loss < best[0]:
            chosen = f"inverse penalty {inverse}"
            best = (loss, model.predict_proba(rows[second:])[:, 1], chosen)
    return best[1], best[2]
