# SPDX-License-Identifier: Apache-2.0
"""Rules for splitting histories, and fingerprints of the splits."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from recsys.data.arrow_columns import column_of, texts_of
from recsys.data.errors import DatasetError
from recsys.data.sequences.histories import RawIds, Sequences, Times, order_raw_ids

LEAVE_ONE_OUT = "leave_one_out"
DICTIONARIES = "dictionaries"
"""Key of a manifest's semantics: fingerprints of the datasets that the item ids come from."""
_TEMPORAL = re.compile(r"temporal:(0\.[0-9]{0,8}[1-9])")
_BLOCK_USERS = 1 << 18
_EMPTY, _TAB, _END = texts_of([b"", b"\t", b"\n"])


def parse_split(text: str) -> Fraction | None:
    """Returns the quantile of a temporal split; None for leave one out.

    Raises:
        ValueError: it is neither.
    """
    if text == LEAVE_ONE_OUT:
        return None
    matched = _TEMPORAL.fullmatch(text)
    if matched is None:
        raise ValueError(
            f"`split` must be {LEAVE_ONE_OUT} or temporal:Q, with Q a decimal number between 0 "
            f"and 1 that does not end in 0, such as temporal:0.9; got {text}"
        )
    return Fraction(matched[1])


def cut_time(timestamps: Times, quantile: Fraction) -> float:
    """Returns the earliest time that is held out.

    With n timestamps t[0] <= t[1] <= ... it is t[floor(quantile n)], computed exactly. Earlier
    interactions are for training; all interactions of that exact time are held out.

    Args:
        timestamps: [n] in any order, at least one.
        quantile: fraction in (0, 1).
    """
    index = len(timestamps) * quantile.numerator // quantile.denominator
    cut: float = np.partition(timestamps, index)[index].item()
    return cut


def split_rows(statistics: Mapping[str, Any]) -> dict[str, int]:
    """Returns the `rows` of a manifest from its statistics.

    The validation of a temporal split is taken from `train`, by a rule that the program chooses.
    """
    interactions, users = statistics["interactions"], statistics["users"]
    if "cut" in statistics:
        before = statistics["before_cut"]
        return {"train": before, "validation": 0, "test": interactions - before}
    return {"train": interactions - 2 * users, "validation": users, "test": users}


def lengths_before(sequences: Sequences, cut: float) -> npt.NDArray[np.int64]:
    """Returns [U] number of items of each user before a time."""
    return np.add.reduceat(_times(sequences) < cut, sequences.offsets[:-1], dtype=np.int64)


def counts_before(sequences: Sequences, cut: float) -> npt.NDArray[np.int64]:
    """Returns [I] number of interactions with each item before a time."""
    known = sequences.items[_times(sequences) < cut]
    return np.bincount(known, minlength=sequences.num_items + 1)[1:]


def _times(sequences: Sequences) -> Times:
    if sequences.timestamps is None:
        raise DatasetError("the sequences have no timestamps; prepare the dataset again")
    return sequences.timestamps


def temporal_statistics(
    sequences: Sequences, quantile: Fraction, users: RawIds, items: RawIds
) -> dict[str, Any]:
    """Returns the statistics of a temporal split for the manifest."""
    cut = cut_time(_times(sequences), quantile)
    before = lengths_before(sequences, cut)
    return {
        "cut": cut,
        "before_cut": int(before.sum()),
        "cold_users": int((before == 0).sum()),
        "cold_items": int((counts_before(sequences, cut) == 0).sum()),
        "split_fingerprint": temporal_fingerprint(sequences, before, users, items),
    }


def split_fingerprint(sequences: Sequences, users: RawIds, items: RawIds) -> str:
    """Returns a checksum of the leave-one-out split, in raw ids.

    It depends only on the raw log: XXH3-128 over a line `user TAB training items TAB validation
    item TAB test item LF` of each user, in the order of `order_raw_ids`.
    """
    digest = xxhash.xxh3_128()
    order = order_raw_ids(users.raw)
    train = sequences.lengths - 2
    validation, test = sequences.validation_items - 1, sequences.test_items - 1
    for start in range(0, len(order), _BLOCK_USERS):
        chosen = order[start : start + _BLOCK_USERS]
        columns = [
            users.raw.take(column_of(chosen)),
            pc.cast(column_of(train[chosen]), pa.string()),
            items.raw.take(column_of(validation[chosen])),
            pc.binary_join_element_wise(items.raw.take(column_of(test[chosen])), _EMPTY, _END),
        ]
        lines = pc.binary_join_element_wise(*columns, _TAB)
        _update(digest, lines)
    return digest.hexdigest()


def temporal_fingerprint(
    sequences: Sequences, before: npt.NDArray[np.int64], users: RawIds, items: RawIds
) -> str:
    """Returns a checksum of a temporal split, in raw ids.

    It depends only on the raw log: XXH3-128 over a line `user TAB items before the cut LF` of each
    user, in the order of `order_raw_ids`, with `TAB raw id` for each later item before the LF.

    Args:
        before: [U] number of items of each user before the cut.
        users: raw ids of the users.
        items: raw ids of the items.
    """
    digest = xxhash.xxh3_128()
    order = order_raw_ids(users.raw)
    after = sequences.lengths - before
    for start in range(0, len(order), _BLOCK_USERS):
        chosen = order[start : start + _BLOCK_USERS]
        ends = after[chosen].cumsum()
        first = sequences.offsets[chosen] + before[chosen]
        index = np.arange(ends[-1]) + np.repeat(first - ends + after[chosen], after[chosen])
        later = items.raw.take(column_of(sequences.items[index] - 1))
        later = pc.binary_join_element_wise(_EMPTY, later, _TAB)
        lists = pa.ListArray.from_arrays(column_of(np.append(0, ends).astype(np.int32)), later)
        known = pc.cast(column_of(before[chosen]), pa.string())
        beginning = pc.binary_join_element_wise(users.raw.take(column_of(chosen)), known, _TAB)
        joined = pc.binary_join(lists, _EMPTY)
        _update(digest, pc.binary_join_element_wise(beginning, joined, _END, _EMPTY))
    return digest.hexdigest()


def _update(digest: xxhash.xxh3_128, lines: pa.Array) -> None:
    lists = pa.ListArray.from_arrays(column_of(np.array([0, len(lines)], np.int32)), lines)
    joined = pc.binary_join(lists, _EMPTY)
    digest.update(joined[0].as_buffer())
