# SPDX-License-Identifier: Apache-2.0
"""Splits by numbers of rows and of days."""

import pytest

from preproc.clicks.rules import ClicksSemantics, split_bounds
from tests.harness import refusal

DAYS = [10, 20, 5]


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"split_rows": (20, 10, 5)}, (20, 30)),
        ({"split_rows": (20, 10, -1)}, (20, 30)),
        ({"split_rows": (-1, 0, 5)}, (30, 30)),
        ({"split_rows": (0, -1, 0)}, (0, 35)),
        ({"split_rows": (35, -1, 0)}, (35, 35)),
        ({"split_days": (1, 1, 1)}, (10, 30)),
        ({"split_days": (2, 0, -1)}, (30, 30)),
        ({"split_days": (-1, 1, 0)}, (30, 35)),
    ],
)
def test_splits_follow_each_other(settings, ends):
    semantics = ClicksSemantics(**settings)
    assert not semantics.halves_last_day
    bounds = split_bounds(DAYS, semantics)
    assert bounds == {"train": (0, ends[0]), "validation": ends, "test": (ends[1], 35)}


@pytest.mark.parametrize("counts", [(20, 10, 4), (20, 10, 6), (36, -1, 0)])
def test_rows_that_do_not_add_up_are_refused(counts):
    with refusal(",".join(map(str, counts)), 35, settings=("split_rows",)):
        split_bounds(DAYS, ClicksSemantics(split_rows=counts))


def test_splits_exclude_each_other():
    with refusal(settings=("split_rows", "split_days")):
        ClicksSemantics(split_rows=(1, 1, -1), split_days=(1, 1, -1))
    with refusal(settings=("split_fractions", "split_rows")):
        ClicksSemantics(split_rows=(1, 1, -1), split_fractions=(0.8, 0.1, 0.1))
