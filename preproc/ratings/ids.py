# SPDX-License-Identifier: Apache-2.0
"""Numbers raw ids; drops users and items with few interactions."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recsys.data.sequences import RawIds, order_raw_ids

Int32Array = npt.NDArray[np.int32]

KCore = Literal["iterated", "once"]
KCORES: tuple[KCore, ...] = get_args(KCore)

_SLICE_ROWS = 2**22
_MIN_PENDING = 2**20


class IdColumn:
    """A column of raw ids, read in chunks, as codes.

    It holds 4 bytes a row, and each id once.
    """

    def __init__(self) -> None:
        self._values = pa.array([], pa.string())
        self._codes: list[Int32Array] = []
        self._pending: list[pa.DictionaryArray] = []
        self._pending_values = 0

    def add(self, column: pa.ChunkedArray) -> None:
        """Takes the next rows, dictionary-encoded."""
        for chunk in column.chunks:
            self._pending.append(chunk)
            self._pending_values += len(chunk.dictionary)
        # Merging costs as much as all ids so far: waiting until as many are pending keeps the
        # whole linear.
        if self._pending_values > max(len(self._values), _MIN_PENDING):
            self._merge()

    def _merge(self) -> None:
        known = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), self._values)
        # The dictionary begins with the known values, so that earlier codes stay valid.
        merged = pa.chunked_array([known, *self._pending]).unify_dictionaries()
        self._values = merged.chunk(0).dictionary
        self._codes += [c.indices.to_numpy().astype(np.int32) for c in merged.chunks[1:]]
        self._pending, self._pending_values = [], 0

    def finish(self) -> tuple[Int32Array, pa.Array]:
        """Returns the codes of all rows and their raw ids.

        The column is empty afterwards.
        """
        self._merge()
        codes = np.concatenate([*self._codes, np.empty(0, np.int32)])
        self._codes = []
        return codes, self._values


def dense_users(codes: Int32Array, raw: pa.Array) -> tuple[Int32Array, RawIds]:
    """Numbers the users that occur from 0, by raw id.

    Args:
        codes: [n] places in `raw`.
        raw: raw ids.

    Returns:
        [n] dense ids, and what they stand for.
    """
    counts, present = _count(codes, raw)
    order = order_raw_ids(raw.take(pa.array(present)))
    return _renumber(codes, raw, counts, present[order], first_id=0)


def dense_items(codes: Int32Array, raw: pa.Array) -> tuple[Int32Array, RawIds]:
    """Numbers the items from 1, by count descending, then raw id.

    Args:
        codes: [n] places in `raw`.
        raw: raw ids.

    Returns:
        [n] dense ids, and what they stand for.
    """
    counts, present = _count(codes, raw)
    order = order_items(raw.take(pa.array(present)), counts[present])
    return _renumber(codes, raw, counts, present[order], first_id=1)


def order_items(raw: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the order of items: count descending, then raw id."""
    by_raw = order_raw_ids(raw)
    return by_raw[np.argsort(-counts[by_raw], kind="stable")]


def _count(codes: Int32Array, raw: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    counts = np.bincount(codes, minlength=len(raw))
    return counts, np.flatnonzero(counts)


def _renumber(
    codes: Int32Array,
    raw: pa.Array,
    counts: npt.NDArray[np.int64],
    ordered: npt.NDArray[np.int64],
    *,
    first_id: int,
) -> tuple[Int32Array, RawIds]:
    dense = np.zeros(len(raw), np.int32)
    dense[ordered] = np.arange(first_id, first_id + len(ordered), dtype=np.int32)
    return dense[codes], RawIds(raw.take(pa.array(ordered)), counts[ordered])


def kcore(
    users: Int32Array,
    items: Int32Array,
    *,
    min_user_count: int,
    min_item_count: int,
    kind: KCore,
) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Chooses the interactions whose user and item have enough of them.

    A pass drops the items with fewer than `min_item_count` interactions, then the users with fewer
    than `min_user_count` among the rest. Repeats of a pair count each time.

    Args:
        users: [n] numbers from 0.
        items: [n] numbers from 0.
        min_user_count: of the interactions of a user.
        min_item_count: of the interactions of an item.
        kind: `once` makes one pass, after which items may again be short of interactions;
            `iterated` makes passes until one drops nothing. The result is the same in whatever
            order users and items are dropped.

    Returns:
        The places of the chosen interactions, ascending (None: all of them), and the number of
        passes that dropped something.
    """
    kept: npt.NDArray[np.int64] | None = None
    passes = 0
    while True:
        before = len(users)
        for column, minimum in ((0, min_item_count), (1, min_user_count)):
            enough = _has_enough((items, users)[column], minimum)
            if enough is None:
                continue
            users, items = users[enough], items[enough]
            kept = np.flatnonzero(enough) if kept is None else kept[enough]
        if len(users) == before:
            return kept, passes
        passes += 1
        if kind == "once":
            return kept, passes


def _has_enough(codes: Int32Array, minimum: int) -> npt.NDArray[np.bool_] | None:
    """Returns a mask of frequent codes, None if all are."""
    if minimum <= 1 or len(codes) == 0:
        return None
    num_codes = int(codes.max()) + 1
    counts = np.zeros(num_codes, np.int64)
    # NumPy makes int64 of what it counts and looks up: in slices, that stays small.
    slices = [slice(i, i + _SLICE_ROWS) for i in range(0, len(codes), _SLICE_ROWS)]
    for rows in slices:
        counts += np.bincount(codes[rows], minlength=num_codes)
    is_frequent = counts >= minimum
    if is_frequent[counts > 0].all():
        return None
    enough = np.empty(len(codes), np.bool_)
    for rows in slices:
        enough[rows] = is_frequent[codes[rows]]
    return enough
