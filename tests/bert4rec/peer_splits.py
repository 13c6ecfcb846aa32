# SPDX-License-Identifier: Apache-2.0
"""Splits of RecTools and RePlay; runs in the environment of `make splitters`.

python peer_splits.py ROWS.npz SPLITS.npz: reads `users`, `items`, `times` (int64, in file order),
the `cut` and the `fraction` after it; writes the numbers of the rows of each split.
"""

import sys

import numpy as np
import pandas as pd
from rectools import Columns
from rectools.dataset import Interactions
from rectools.model_selection import TimeRangeSplitter
from replay.splitters import TimeSplitter

DAY_S = 86_400


def rectools_rows(users, items, times, cut, **filters):
    """Returns the rows of train and test, by whole days back from the last interaction.

    The splitter takes no moment. All times are moved by the same seconds, so that the cut is at
    midnight, and the test is as many days long as there are from there.
    """
    moved = times + -cut % DAY_S
    days = int((moved.max() - moved[times == cut][0]) // DAY_S + 1)
    table = {
        Columns.User: users,
        Columns.Item: items,
        Columns.Weight: 1.0,
        Columns.Datetime: pd.to_datetime(moved, unit="s"),
    }
    splitter = TimeRangeSplitter(f"{days}D", n_splits=1, filter_already_seen=False, **filters)
    ((train, test, _),) = splitter.split(Interactions(pd.DataFrame(table)))
    return train, test


def replay_rows(users, items, times, threshold, **filters):
    """Returns the rows of train and test, by a moment (integer) or a fraction (float)."""
    table = pd.DataFrame({"query_id": users, "item_id": items, "timestamp": times})
    train, test = TimeSplitter(threshold, **filters).split(table)
    return np.sort(train.index), np.sort(test.index)


def main(source: str, target: str) -> None:
    """Splits the rows of a file in every way that the test asks for."""
    given = np.load(source)
    rows = (given["users"], given["items"], given["times"])
    cut, fraction = int(given["cut"]), float(given["fraction"])
    everyone = {"filter_cold_users": False, "filter_cold_items": False}
    known_users = {"filter_cold_users": True, "filter_cold_items": False}
    splits = {
        "rectools": rectools_rows(*rows, cut, **everyone),
        "rectools_known_users": rectools_rows(*rows, cut, **known_users),
        "rectools_known_both": rectools_rows(*rows, cut),
        "replay": replay_rows(*rows, cut),
        "replay_by_fraction": replay_rows(*rows, fraction),
        "replay_known_users": replay_rows(*rows, cut, drop_cold_users=True),
        "replay_known_both": replay_rows(*rows, cut, drop_cold_users=True, drop_cold_items=True),
    }
    arrays = {f"{name}_{side}": row for name, pair in splits.items()
              for side, row in zip(("train", "test"), pair, strict=True)}  # fmt: skip
    np.savez(target, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
