# SPDX-License-Identifier: Apache-2.0
"""Records RecTools' EASE and its metrics of lists on MovieLens-100K, for test_peer_baselines.py.

python -m tests.bert4rec.peer_baselines DATA: reads the ratings in DATA, rewrites
peer_baselines.json. It needs rectools 0.19.0, numpy 1.26.4, pandas 2.3.3 and scipy 1.17.1.
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.bert4rec.peer_splits import by_user, read_rows

EXPECTED = Path(__file__).with_suffix(".json")
LENGTH = 10
PAIRS = 300
RIDGE = 500.0


def histories_of(rows: np.ndarray) -> dict[int, list[int]]:
    """Returns user -> items, by time."""
    return by_user(rows, np.arange(rows.shape[1]))


def training_pairs(rows: np.ndarray) -> np.ndarray:
    """Returns [2, N] users and items of all but each user's last two."""
    return np.array([(u, i) for u, items in histories_of(rows).items() for i in items[:-2]]).T


def varied_lists(rows: np.ndarray) -> dict[int, list[int]]:
    """Returns user -> unseen items, popular ones in an order that differs from user to user."""
    items, counts = np.unique(training_pairs(rows)[1], return_counts=True)
    lists = {}
    for user, history in histories_of(rows).items():
        key = counts * ((user * 31 + items * 17) % 97)
        order = items[np.argsort(-key, kind="stable")]
        lists[user] = order[~np.isin(order, history[:-1])][:LENGTH].tolist()
    return lists


def sampled_pairs(rows: np.ndarray) -> np.ndarray:
    """Returns [PAIRS, 2] raw items met in training, of which two differ."""
    items = np.unique(training_pairs(rows)[1])
    first = np.arange(PAIRS) * 7 % len(items)
    return np.stack([items[first], items[(first * 3 + 1) % len(items)]], 1)


def record(rows: np.ndarray) -> dict[str, object]:
    """Returns RecTools' entries of EASE at `sampled_pairs`, and its metrics of `varied_lists`."""
    import pandas as pd
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.metrics import (
        MRR,
        NDCG,
        CatalogCoverage,
        HitRate,
        IntraListDiversity,
        MeanInvUserFreq,
        calc_metrics,
    )
    from rectools.metrics.distances import PairwiseDistanceCalculator
    from rectools.models import EASEModel

    users, items = training_pairs(rows)
    train = pd.DataFrame({Columns.User: users, Columns.Item: items})
    train[Columns.Weight], train[Columns.Datetime] = 1, pd.Timestamp("2000-01-01")
    dataset = Dataset.construct(train)
    ease = EASEModel(regularization=RIDGE).fit(dataset)
    number = dataset.item_id_map.convert_to_internal
    entries = [float(ease.weight[tuple(number(list(pair)))]) for pair in sampled_pairs(rows)]

    met = pd.crosstab(users, items)
    product = met.T.to_numpy() @ met.to_numpy()
    length = np.sqrt(product.diagonal())
    cosines = pd.DataFrame(product / np.outer(length, length), met.columns, met.columns)

    class Cosine(PairwiseDistanceCalculator):
        def _get_distances_for_item_pairs(self, first, second):
            return np.array([1 - cosines.loc[a, b] for a, b in zip(first, second, strict=True)])

        def __getitem__(self, pairs):
            return self._get_distances_for_item_pairs(*pairs)

    lists = pd.DataFrame(
        [(u, i, rank) for u, row in varied_lists(rows).items() for rank, i in enumerate(row, 1)],
        columns=[Columns.User, Columns.Item, Columns.Rank],
    )
    truth = pd.DataFrame(
        [(user, row[-1]) for user, row in histories_of(rows).items()],
        columns=[Columns.User, Columns.Item],
    )
    metrics = {
        "hr": HitRate(LENGTH), "ndcg": NDCG(LENGTH, divide_by_achievable=True), "mrr": MRR(LENGTH),
        "coverage": CatalogCoverage(LENGTH, normalize=True), "novelty": MeanInvUserFreq(LENGTH),
        "diversity": IntraListDiversity(LENGTH, Cosine()),
    }  # fmt: skip
    catalogue = np.unique(rows[1])
    values = calc_metrics(metrics, lists, truth, train, catalogue)
    return {"ease": entries, "metrics": {name: float(value) for name, value in values.items()}}


def main(folder: Path) -> None:
    """Writes what RecTools answers."""
    EXPECTED.write_text(json.dumps(record(read_rows(folder, "ml-100k")), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
