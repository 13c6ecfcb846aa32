# SPDX-License-Identifier: Apache-2.0
"""Numbers items like another dataset, or by a temporal split."""

import dataclasses
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from preproc.files.errors import PreprocError
from preproc.ratings.format import ITEM
from preproc.ratings.parse import Interactions, times_of_keys
from preproc.ratings.stages import Filtered, order_ids
from recsys.data.errors import DatasetError
from recsys.data.manifest import Manifest, file_checksum
from recsys.data.sequences.files import ITEM_MAP_FILE, read_item_map
from recsys.data.sequences.histories import RawIds
from recsys.data.sequences.split import (
    DICTIONARIES,
    counts_before,
    cut_time,
    lengths_before,
    temporal_statistics,
)


@dataclasses.dataclass(slots=True)
class KnownItems:
    """The catalogue of a dataset.

    Attributes:
        raw: [I] raw ids of the items 1, 2, ...
        fingerprints: fingerprints of the dataset, and of datasets that its ids came from.
        num_left_out: rows of other items so far.
    """

    raw: pa.Array
    fingerprints: list[str]
    num_left_out: int = 0

    @classmethod
    def of(cls, dataset: Path) -> "KnownItems":
        """Reads the item map of a dataset.

        Raises:
            PreprocError: the folder is not a dataset of sequences, or is damaged.
        """
        try:
            manifest, items = Manifest.load(dataset), read_item_map(dataset)
        except DatasetError as error:
            raise PreprocError(f"`dictionaries`: {error}", setting="dictionaries") from error
        if manifest.files[ITEM_MAP_FILE]["xxh3_128"] != file_checksum(dataset / ITEM_MAP_FILE):
            raise PreprocError(
                f"`dictionaries` {dataset}: {ITEM_MAP_FILE} does not match its checksum in the "
                "manifest; get the dataset again",
                setting="dictionaries",
            )
        return cls(items.raw, [manifest.fingerprint, *manifest.semantics.get(DICTIONARIES, [])])

    def keep(self, rows: Interactions) -> Interactions:
        """Returns the rows of these items, and counts the others."""
        is_known = pc.is_in(rows.items.cast(pa.string()), self.raw).to_numpy()
        self.num_left_out += len(rows) - int(is_known.sum())
        return rows.filter(is_known)

    def number(self, filtered: Filtered) -> Filtered:
        """Returns the interactions with item numbers from this catalogue."""
        places = pc.index_in(filtered.items.raw, self.raw).to_numpy()
        return renumbered(
            filtered, places + 1, self.raw, {"dropped_by_dictionaries": self.num_left_out}
        )


def renumbered(
    filtered: Filtered, numbers: npt.NDArray[np.int64], raw: pa.Array, statistics: dict[str, int]
) -> Filtered:
    """Returns the interactions with other item numbers.

    Args:
        filtered: interactions whose items are numbered 1, 2, ...
        numbers: the new number of each of these items.
        raw: [I] raw ids of the catalogue, in the order of the new numbers.
        statistics: further counts.
    """
    counts = np.zeros(len(raw), np.int64)
    counts[numbers - 1] = filtered.items.counts
    items = np.append(0, numbers).astype(np.int32)[filtered.sequences.items]
    sequences = dataclasses.replace(filtered.sequences, items=items, num_items=len(raw))
    all_counts = filtered.statistics | {"items": len(raw)} | statistics
    return Filtered(sequences, filtered.users, RawIds(raw, counts), all_counts)


def hold_out(
    filtered: Filtered, quantile: Fraction, *, real_times: bool, keep_numbers: bool
) -> Filtered:
    """Holds out all interactions from a quantile of the times on.

    Items are numbered by their interactions before the cut, so that later interactions do not
    change the number of a training item; with `keep_numbers` they keep their numbers. With
    `real_times` the timestamps are keys of floats; see `times_of_keys`.

    Raises:
        PreprocError: no user has interactions on both sides of the cut.
    """
    sequences = filtered.sequences
    times = sequences.timestamps
    assert times is not None
    if real_times:
        times = times_of_keys(times.astype(np.int64, copy=False))
    cut = cut_time(times, quantile)
    sequences = dataclasses.replace(sequences, timestamps=times)
    counts = counts_before(sequences, cut)
    ids = RawIds(filtered.items.raw, counts)
    order = np.arange(len(ids)) if keep_numbers else order_ids(ITEM, ids)
    numbers = np.zeros(sequences.num_items + 1, np.int32)
    numbers[order + 1] = np.arange(1, sequences.num_items + 1, dtype=np.int32)
    items = filtered.items.take(order)
    sequences = dataclasses.replace(sequences, items=numbers[sequences.items])
    before = lengths_before(sequences, cut)
    if not ((before > 0) & (before < sequences.lengths)).any():
        raise PreprocError(
            f"`split` cuts at the time {cut}, but no user has interactions both before and after; "
            "choose another fraction",
            setting="split",
        )
    statistics = temporal_statistics(sequences, quantile, filtered.users, items)
    return Filtered(sequences, filtered.users, items, filtered.statistics | statistics)
