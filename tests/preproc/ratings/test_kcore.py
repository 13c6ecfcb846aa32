# SPDX-License-Identifier: Apache-2.0
"""The k-core filter against a plain loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preproc.ratings import ids as module
from preproc.ratings.ids import kcore


def plain(pairs, min_users, min_items, kind):
    kept = list(range(len(pairs)))
    while True:
        before = len(kept)
        for column, minimum in ((1, min_items), (0, min_users)):
            codes = [pairs[i][column] for i in kept]
            kept = [i for i in kept if codes.count(pairs[i][column]) >= minimum]
        if kind == "once" or len(kept) == before:
            return kept


@pytest.mark.parametrize("kind", ["once", "iterated"])
@given(
    pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40),
    min_users=st.integers(0, 5),
    min_items=st.integers(0, 5),
)
def test_it_keeps_what_the_plain_loop_keeps(kind, pairs, min_users, min_items):
    users, items = (np.array([p[c] for p in pairs], np.int32) for c in (0, 1))
    kept, _ = kcore(users, items, min_user_count=min_users, min_item_count=min_items, kind=kind)
    found = list(range(len(pairs))) if kept is None else kept.tolist()
    assert found == plain(pairs, min_users, min_items, kind)


def test_once_and_iterated_differ_where_a_user_takes_items_along():
    # User 1 is short, and its going makes item 1 short, whose going makes user 0 short.
    pairs = [(0, 0), (0, 1), (1, 1), (2, 0), (2, 2), (3, 0), (3, 2)]
    users, items = (np.array([p[c] for p in pairs], np.int32) for c in (0, 1))
    limits = {"min_user_count": 2, "min_item_count": 2}
    once, once_passes = kcore(users, items, kind="once", **limits)
    iterated, passes = kcore(users, items, kind="iterated", **limits)
    assert (once.tolist(), once_passes) == ([0, 1, 3, 4, 5, 6], 1)
    assert (iterated.tolist(), passes) == ([3, 4, 5, 6], 2)


def test_slices_do_not_matter(monkeypatch):
    rng = np.random.default_rng(0)
    users, items = rng.zipf(1.5, (2, 3000)).clip(max=300).astype(np.int32)
    limits = {"min_user_count": 4, "min_item_count": 3, "kind": "iterated"}
    whole, passes = kcore(users, items, **limits)
    assert whole is not None
    assert passes > 1
    monkeypatch.setattr(module, "_SLICE_ROWS", 7)
    sliced, _ = kcore(users, items, **limits)
    np.testing.assert_array_equal(whole, sliced)
