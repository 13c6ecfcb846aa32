# SPDX-License-Identifier: Apache-2.0
"""Gives the ids of categories that no longer occur to new ones.

The rule looks at the days before: a category may lose its id if it has not occurred for
`evict_after` days and, with `evict_below`, has occurred fewer times since it got the id. When a day
adds categories, those that have not occurred for the longest lose theirs first, then those with
fewer occurrences, then the lower ids. Of the new categories, in their order, the first get these
ids in ascending order; the others get the ids behind all. So a table only grows if there are not
enough ids to reuse, and an id that nothing needs keeps its category.

Rows of the day itself do not prevent it: a category that loses its id on this day has id 0 in them.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from preproc.clicks.dictionaries import Dictionaries, Keys
from preproc.clicks.growth.days import Growth
from preproc.clicks.rules import SPLITS, ClicksSemantics
from preproc.files.workspace import atomic_file
from recsys.data.growing.categories import (
    DICTIONARY_FOLDER,
    OCCURRENCES,
    REUSED,
    occurrences_path,
    reused_ids,
)
from recsys.data.positioned_io import map_array

_CHUNK_IDS = 1 << 22


def reused_places(
    before: npt.NDArray[np.uint64], num_new: int, day: int, semantics: ClicksSemantics
) -> npt.NDArray[np.int64]:
    """Returns the places (id - 1) that new categories take from others, in ascending order.

    Args:
        before: [n, 2] last day and occurrences of each category, see `OCCURRENCES`.
        num_new: categories that the day adds.
        day: number of the day.
        semantics: the rule.
    """
    assert semantics.evict_after is not None
    last, count = before[:, 0].astype(np.int64), before[:, 1]
    may_go = day - last > semantics.evict_after
    if semantics.evict_below is not None:
        may_go &= count < semantics.evict_below
    places = np.flatnonzero(may_go)
    oldest = np.lexsort((places, count[places], last[places]))[:num_new]
    return np.sort(places[oldest])


def with_evicted(
    growth: Growth, column: int, keys: Keys, semantics: ClicksSemantics
) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Gives new categories of a column the ids of others.

    Args:
        growth: the days before.
        column: number of the column.
        keys: the known categories, followed by the new ones.
        semantics: the rule.

    Returns:
        (all categories in id order, `reused_places`).
    """
    before = _occurrences(growth, column)
    places = reused_places(before, len(keys) - len(before), growth.number, semantics)
    return keys.with_reused_ids(len(before), places), places


def _occurrences(growth: Growth, column: int) -> npt.NDArray[np.uint64]:
    """Maps the last day and the occurrences of each category that the day before knew."""
    assert growth.known is not None
    return map_array(occurrences_path(growth.known.folder, column), OCCURRENCES).reshape(-1, 2)


def reuse_ids(
    growth: Growth, merged: Dictionaries, semantics: ClicksSemantics, into: Dictionaries
) -> None:
    """Writes the missing dictionaries of a day, in which new categories take the ids of others.

    Args:
        growth: the days before.
        merged: dictionaries with the known and then the new categories of each column.
        semantics: the rule.
        into: dictionaries to write.
    """
    for column in into.missing():
        keys, places = with_evicted(growth, column, merged.load_column(column), semantics)
        with atomic_file(into.counts_path(column)) as file:
            file.write(merged.counts_path(column).read_bytes())
        save_reused(into.reused_path(column), places)
        into.save(column, keys)


def save_reused(path: Path, places: npt.NDArray[np.int64]) -> None:
    """Writes the ids of places that were reused."""
    with atomic_file(path) as file:
        file.write((places + 1).astype(REUSED).tobytes())


def write_occurrences(
    growth: Growth,
    dataset: Path,
    columns: Path,
    cardinalities: Iterable[int],
    dtypes: Iterable[np.dtype[np.signedinteger]],
    vocabularies: Iterable[Iterable[int]],
) -> None:
    """Writes the last day and the occurrences of each category, for the eviction of later days.

    Args:
        growth: the days before.
        dataset: staged dataset, whose dictionaries are complete.
        columns: folder with the ids of each split.
        cardinalities: ids of each column, including id 0.
        dtypes: type of each column's ids.
        vocabularies: for each column, the columns that share its ids.
    """
    counts = [
        _count_ids(columns, column, dtype, rows)
        for column, (dtype, rows) in enumerate(zip(dtypes, cardinalities, strict=True))
    ]
    for column, shared in enumerate(vocabularies):
        of_day = np.sum([counts[each] for each in shared], axis=0)[1:]
        made = np.zeros((len(of_day), 2), np.uint64)
        known = 0
        if growth.known is not None:
            before = _occurrences(growth, column)
            known = len(before)
            made[:known] = before
            reused = reused_ids(dataset, column) - 1
            made[reused] = 0
            made[reused, 0] = growth.number
        made[known:, 0] = growth.number
        made[of_day > 0, 0] = growth.number
        made[:, 1] += of_day.astype(np.uint64)
        with atomic_file(occurrences_path(dataset / DICTIONARY_FOLDER, column)) as file:
            file.write(made.astype(OCCURRENCES).tobytes())


def _count_ids(
    columns: Path, column: int, dtype: np.dtype[np.signedinteger], rows: int
) -> npt.NDArray[np.int64]:
    """Counts each id of a column, over all splits: [rows]."""
    counts = np.zeros(rows, np.int64)
    for split in SPLITS:
        path = columns / split / f"cat_{column}.bin"
        ids = map_array(path, dtype) if path.exists() else np.empty(0, dtype)
        for start in range(0, len(ids), _CHUNK_IDS):
            counts += np.bincount(ids[start : start + _CHUNK_IDS], minlength=rows)
    return counts
