# SPDX-License-Identifier: Apache-2.0
"""Filters users and items that have too few interactions."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

KCore = Literal["iterated", "once"]
KCORES: tuple[KCore, ...] = get_args(KCore)

Int32Array = npt.NDArray[np.int32]

_SLICE_ROWS = 2**22


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
    """Returns which places hold a code that occurs often enough, None if all do."""
    if minimum <= 1 or len(codes) == 0:
        return None
    num_codes = int(codes.max()) + 1
    counts = np.zeros(num_codes, np.int64)
    # NumPy makes int64 of what it counts and looks up: in slices, that stays small.
    slices = [slice(i, i + _SLICE_ROWS) for i in range(0, len(codes), _SLICE_ROWS)]
    for part in slices:
        counts += np.bincount(codes[part], minlength=num_codes)
    is_frequent = counts >= minimum
    if is_frequent[counts > 0].all():
        return None
    enough = np.empty(len(codes), np.bool_)
    for part in slices:
        enough[part] = is_frequent[codes[part]]
    return enough
