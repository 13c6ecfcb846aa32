# SPDX-License-Identifier: Apache-2.0
"""Dense ids of users and items, and the k-core filter."""

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from preproc.ratings.format import ITEM, USER
from recsys.data.sequences.histories import RawIds, order_raw_ids

Int32Array = npt.NDArray[np.int32]

KCore = Literal["iterated", "once"]
KCORES: tuple[KCore, ...] = get_args(KCore)

FIRST_IDS = {USER: 0, ITEM: 1}
"""The first dense id of each column."""

_SLICE_ROWS = 2**22
_MIN_PENDING = 2**20


class IdColumn:
    """A column of raw ids, dictionary-encoded as it grows.

    Memory is 4 bytes a row, and each id once.
    """

    def __init__(self) -> None:
        self._values = pa.array([], pa.string())
        self._codes: list[Int32Array] = []
        self._pending: list[pa.DictionaryArray] = []
        self._pending_values = 0

    def add(self, column: pa.ChunkedArray) -> None:
        """Appends rows, dictionary-encoded."""
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
        """Returns the codes [rows] and the raw ids; frees the codes."""
        self._merge()
        codes = np.concatenate([*self._codes, np.empty(0, np.int32)])
        self._codes = []
        return codes, self._values


def order_ids(column: str, raw: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the indices of distinct raw ids in dense id order.

    Users are ordered by raw id, items by count descending, then raw id.
    """
    by_raw = order_raw_ids(raw)
    return by_raw if column == USER else by_raw[np.argsort(-counts[by_raw], kind="stable")]


def dense_ids(column: str, codes: Int32Array, raw: pa.Array) -> tuple[Int32Array, RawIds]:
    """Encodes indices into raw ids in dense ids of those used.

    Returns:
        [rows] dense ids; the raw ids and their counts, in id order.
    """
    counts = np.bincount(codes, minlength=len(raw))
    present = np.flatnonzero(counts)
    ordered = present[order_ids(column, raw.take(pa.array(present)), counts[present])]
    dense = np.zeros(len(raw), np.int32)
    dense[ordered] = np.arange(len(ordered), dtype=np.int32) + FIRST_IDS[column]
    return dense[codes], RawIds(raw.take(pa.array(ordered)), counts[ordered])


def repeat_passes(kind: KCore, num_rows: Callable[[], int], drop_rare: Callable[[], None]) -> int:
    """Makes k-core passes; returns the number that dropped rows."""
    passes = 0
    while before := num_rows():
        drop_rare()
        if num_rows() == before:
            break
        passes += 1
        if kind == "once":
            break
    return passes


def kcore(
    users: Int32Array,
    items: Int32Array,
    *,
    min_user_count: int,
    min_item_count: int,
    kind: KCore,
) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Selects the interactions of users and items that have enough of them.

    A pass drops the items with fewer than `min_item_count` interactions, then the users with fewer
    than `min_user_count` among the rest. Repeats of a pair count each time. `once` makes one pass,
    after which items may be short again; `iterated` makes passes until one drops nothing, with the
    same result in any order of dropping.

    Returns:
        The indices of the selected interactions, ascending (None: all of them), and the number of
        passes that dropped something.
    """
    kept: npt.NDArray[np.int64] | None = None

    def drop_rare() -> None:
        nonlocal users, items, kept
        for column, minimum in ((ITEM, min_item_count), (USER, min_user_count)):
            enough = _has_enough(items if column == ITEM else users, minimum)
            if enough is not None:
                users, items = users[enough], items[enough]
                kept = np.flatnonzero(enough) if kept is None else kept[enough]

    passes = repeat_passes(kind, lambda: len(users), drop_rare)
    return kept, passes


def _has_enough(codes: Int32Array, minimum: int) -> npt.NDArray[np.bool_] | None:
    """Returns a mask [rows] of frequent codes, None if all are."""
    if minimum <= 1 or len(codes) == 0:
        return None
    num_codes = int(codes.max()) + 1
    counts = np.zeros(num_codes, np.int64)
    # NumPy converts codes to int64 to count and look up: in slices, the copies stay small.
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
