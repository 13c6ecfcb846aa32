# SPDX-License-Identifier: Apache-2.0
"""Tells integers that measure or count something from those that name something."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

_COMMONEST = 30
_FEW = 10
"""Distinct integers that are categories, whatever they are."""
_MANY = 50
"""Distinct integers from which on their density can be told to be smooth."""
_FALL, _SMOOTH = -0.6, 0.4
"""Rank correlations that chance, or ids in no order, do not have."""
_BINS = 10


def is_count(present: Mapping[str, int]) -> bool:
    """Returns True if larger integers are rarer, as those of counts are."""
    if len(present) <= _FEW or not _is_from_zero(present):
        return False
    commonest = Counter(present).most_common(_COMMONEST)
    return _correlation([int(value) for value, _ in commonest], [n for _, n in commonest]) < _FALL


def is_scale(present: Mapping[str, int]) -> bool:
    """Returns True if integers near each other come about equally often, as durations do.

    Ids are as frequent as what they name is, whatever their neighbours are.
    """
    if len(present) < _MANY or not _is_from_zero(present):
        return False
    ordered = sorted((int(value), n) for value, n in present.items())
    densities = [n / (after - value) for (value, n), (after, _) in pairwise(ordered)]
    return _correlation(densities[:-1], densities[1:]) > _SMOOTH


def bins_of(present: Mapping[str, int]) -> list[int]:
    """Returns edges between which about equally many of the integers lie."""
    values = np.repeat([int(value) for value in present], [*present.values()])
    quantiles = np.quantile(values, np.arange(1, _BINS) / _BINS, method="inverted_cdf")
    return sorted({int(edge) for edge in quantiles})


def _is_from_zero(present: Mapping[str, int]) -> bool:
    """Returns True if the integers lie about zero; ids from 5060 to 5100 do not."""
    values = [int(value) for value in present]
    return max(values) - min(values) > abs(min(values))


def _correlation(first: list[float] | list[int], second: list[float] | list[int]) -> float:
    from scipy.stats import spearmanr

    if len({*first}) == 1 or len({*second}) == 1:
        return 0.0  # there is no order to compare
    return float(spearmanr(first, second).statistic)
