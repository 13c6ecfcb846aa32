# SPDX-License-Identifier: Apache-2.0
"""Splits histories at a moment, and numbers items by what comes before."""

import dataclasses
from fractions import Fraction

import numpy as np
import pyarrow as pa

from preproc.files.errors import PreprocError
from preproc.ratings.format import ITEM
from preproc.ratings.histories import Filtered
from preproc.ratings.ids import order_ids
from preproc.ratings.parse import times_of_keys
from recsys.data.sequences import (
    RawIds,
    counts_before,
    cut_time,
    lengths_before,
    temporal_statistics,
)


def hold_out(
    filtered: Filtered, quantile: Fraction, *, real_times: bool, keep_numbers: bool
) -> Filtered:
    """Holds out all interactions from a quantile of their times on.

    Items get numbers in the order of their interactions before the cut, so that no later one
    moves a training item, or keep those that they have. With `real_times` the timestamps are keys
    of floats, see `parse_chunk`.

    Raises:
        PreprocError: nobody has interactions on both sides of the cut.
    """
    sequences = filtered.sequences
    times = sequences.timestamps
    assert times is not None
    if real_times:
        times = times_of_keys(times.astype(np.int64, copy=False))
    cut = cut_time(times, quantile)
    sequences = dataclasses.replace(sequences, timestamps=times)
    counts = counts_before(sequences, cut)
    order = np.arange(len(counts)) if keep_numbers else order_ids(ITEM, filtered.items.raw, counts)
    numbers = np.zeros(sequences.num_items + 1, np.int32)
    numbers[order + 1] = np.arange(1, sequences.num_items + 1, dtype=np.int32)
    items = RawIds(filtered.items.raw.take(pa.array(order)), filtered.items.counts[order])
    sequences = dataclasses.replace(sequences, items=numbers[sequences.items])
    before = lengths_before(sequences, cut)
    if not ((before > 0) & (before < sequences.lengths)).any():
        raise PreprocError(
            f"`split` cuts at the time {cut}, and no user has interactions both before and after: "
            "choose another fraction"
        )
    statistics = temporal_statistics(sequences, quantile, filtered.users, items)
    return Filtered(sequences, filtered.users, items, filtered.statistics | statistics)
