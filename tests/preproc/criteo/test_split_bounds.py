# SPDX-License-Identifier: Apache-2.0
"""Splits by numbers of rows and of days."""

import pytest

from preproc.criteo.rules import CriteoSemantics, split_bounds
from recsys.errors import UserError
from tests.preproc.criteo.rows import run, write_days

DAYS = [10, 20, 5]


@pytest.mark.parametrize(
    ("counts", "ends"),
    [
        ((20, 10, 5), (20, 30, 35)),
        ((20, 10, -1), (20, 30, 35)),
        ((-1, 0, 5), (30, 30, 35)),
        ((0, -1, 0), (0, 35, 35)),
        ((35, -1, 0), (35, 35, 35)),
    ],
)
def test_rows_follow_each_other(counts, ends):
    bounds = split_bounds(DAYS, CriteoSemantics(split_rows=counts))
    assert [bounds[split] for split in ("train", "validation", "test")] == [
        (0, ends[0]),
        (ends[0], ends[1]),
        (ends[1], ends[2]),
    ]


@pytest.mark.parametrize(
    ("counts", "ends"), [((1, 1, 1), (10, 30)), ((2, 0, -1), (30, 30)), ((-1, 1, 0), (30, 35))]
)
def test_days_are_whole(counts, ends):
    bounds = split_bounds(DAYS, CriteoSemantics(split_days=counts))
    assert (bounds["train"][1], bounds["validation"][1], bounds["test"][1]) == (*ends, 35)


def test_counts_come_before_fractions():
    semantics = CriteoSemantics(split_fractions=(0.8, 0.1, 0.1), split_rows=(1, 1, -1))
    assert split_bounds(DAYS, semantics)["train"] == (0, 1)
    assert not semantics.halves_last_day
    assert CriteoSemantics().halves_last_day


@pytest.mark.parametrize("counts", [(20, 10, 4), (20, 10, 6), (36, -1, 0)])
def test_rows_that_do_not_add_up_are_refused(counts):
    with pytest.raises(UserError, match=r"`split_rows` .* valid rows, but there are 35"):
        split_bounds(DAYS, CriteoSemantics(split_rows=counts))


def test_rows_and_days_exclude_each_other():
    with pytest.raises(UserError, match="exclude each other"):
        CriteoSemantics(split_rows=(1, 1, -1), split_days=(1, 1, -1))


@pytest.mark.parametrize(
    "settings", [{"split_rows": (50, 25, -1)}, {"split_days": (1, -1, 0)}], ids=str
)
def test_engines_make_the_same_dataset(tmp_path, settings):
    days = write_days(tmp_path / "days", rows=40)
    semantics = CriteoSemantics(frequency_limit=2, dictionary_days="train", **settings)
    made = run(days, tmp_path / "native", semantics=semantics)
    expected = run(days, tmp_path / "reference", "reference", semantics=semantics)
    assert made.fingerprint == expected.fingerprint
    rows = made.rows
    if "split_rows" in settings:
        assert (rows["train"], rows["validation"]) == (50, 25)
    else:
        assert rows["test"] == 0
