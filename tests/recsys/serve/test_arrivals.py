# SPDX-License-Identifier: Apache-2.0
"""Arrivals are a Poisson process, and the largest rate within a limit is found."""

import numpy as np
import pytest

from recsys.serve.client.arrivals import ArrivalsResult, arrival_times, find_largest_rate
from recsys.train.timing import LatencySummary


def test_arrivals_are_a_seeded_poisson_process():
    times = arrival_times(rate=200.0, seconds=100.0, seed=1)
    gaps = np.diff(times, prepend=0.0)
    assert len(times) == 20_000
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.03)  # as of an exponential distribution
    assert (times == arrival_times(200.0, 100.0, 1)).all()
    assert (times != arrival_times(200.0, 100.0, 2)).any()
    assert len(arrival_times(rate=0.1, seconds=1.0, seed=0)) == 1


@pytest.mark.parametrize("capacity", [0.0, 3.0, 480.0, 20_000.0])
def test_the_search_ends_near_the_largest_rate(capacity):
    tried = []

    def measure(rate):
        tried.append(rate)
        p99 = 0.001 if rate <= capacity else 1.0
        return ArrivalsResult(1, rate, 4, LatencySummary(p99, p99, p99, p99), 100, 1.0, 1.0)

    best = find_largest_rate(measure, 0.01, first_rate=100.0)
    if capacity:
        assert 0.97 * capacity < best.rate <= capacity
        assert len(tried) < 20
    else:
        assert best is None
