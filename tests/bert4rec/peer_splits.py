# SPDX-License-Identifier: Apache-2.0
"""Records the temporal splits of RecTools and RePlay on real ratings, for test_peer_splits.py.

python -m tests.bert4rec.peer_splits DATA: reads the ratings in DATA, rewrites peer_splits.json. It
needs rectools 0.19.0, replay-rec 0.22.0, numpy 1.26.4, pandas 2.3.3 and scipy 1.17.1.
"""

import gzip
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

EXPECTED = Path(__file__).with_suffix(".json")
DAY_S = 86_400
FRACTION = 0.1
FILES = {
    "ml-100k": ("ml-100k/u.data.gz", "\t", 0),
    "ml-latest-small": ("ml-latest-small/ratings.csv.gz", ",", 1),
}


def read_rows(folder: Path, name: str) -> np.ndarray:
    """Returns user, item and time of each row, in file order."""
    path, separator, header = FILES[name]
    with gzip.open(folder / path, "rt") as file:
        return np.loadtxt(
            file, np.int64, delimiter=separator, skiprows=header, usecols=(0, 1, 3),
            converters=lambda text: int(float(text)),
        ).T  # fmt: skip


def by_user(rows: np.ndarray, chosen: np.ndarray) -> dict[int, list[int]]:
    """Returns user -> items of the chosen rows, by time and then file order."""
    users, items, times = rows
    order = chosen[np.lexsort((chosen, times[chosen]))]
    lists: dict[int, list[int]] = {}
    for user, item in zip(users[order].tolist(), items[order].tolist(), strict=True):
        lists.setdefault(user, []).append(item)
    return lists


def digest(lists: dict[int, list[int]]) -> str:
    """Returns the number of users and a checksum of their items."""
    text = json.dumps(sorted(lists.items()))
    return f"{len(lists)} users, sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def rectools_rows(rows, cut, **filters):
    """Returns the rows of train and test, by whole days back from the last interaction.

    The splitter takes no moment. All times are moved by the same seconds, so that the cut is at
    midnight, and the test is as many days long as there are from there.
    """
    import pandas as pd
    from rectools import Columns
    from rectools.dataset import Interactions
    from rectools.model_selection import TimeRangeSplitter

    users, items, times = rows
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


def replay_rows(rows, threshold, **filters):
    """Returns the rows of train and test, by a moment (integer) or a fraction (float)."""
    import pandas as pd
    from replay.splitters import TimeSplitter

    table = pd.DataFrame(dict(zip(("query_id", "item_id", "timestamp"), rows, strict=True)))
    train, test = TimeSplitter(threshold, **filters).split(table)
    return np.sort(train.index), np.sort(test.index)


def record(rows: np.ndarray) -> dict[str, object]:
    """Splits rows in every way that the test compares; RePlay finds the cut from the fraction."""
    by_fraction = replay_rows(rows, FRACTION)
    cut = int(rows[2][by_fraction[1]].min())
    everyone = {"filter_cold_users": False, "filter_cold_items": False}
    known_users = {"filter_cold_users": True, "filter_cold_items": False}
    splits = {
        "rectools": rectools_rows(rows, cut, **everyone),
        "rectools, known users": rectools_rows(rows, cut, **known_users),
        "rectools, known both": rectools_rows(rows, cut),
        "replay": replay_rows(rows, cut),
        "replay by fraction": by_fraction,
        "replay, known users": replay_rows(rows, cut, drop_cold_users=True),
        "replay, known both": replay_rows(rows, cut, drop_cold_users=True, drop_cold_items=True),
    }
    digests = {
        name: {
            side: digest(by_user(rows, chosen))
            for side, chosen in zip(("train", "test"), pair, strict=True)
        }
        for name, pair in splits.items()
    }
    return {"cut": cut, "splits": digests}


if __name__ == "__main__":
    expected = {name: record(read_rows(Path(sys.argv[1]), name)) for name in FILES}
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")
