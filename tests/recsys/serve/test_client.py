# SPDX-License-Identifier: Apache-2.0
"""The client: bad requests are refused by name, and the largest rate of arrivals is found."""

import numpy as np
import pytest

from recsys.serve.client.arrivals import ArrivalsResult, arrival_times, find_largest_rate
from recsys.serve.client.requests import BadRequestError, check_arrays, check_ids
from recsys.serve.signature import clicks_signature, ratings_signature
from recsys.train.measure.timing import LatencySummary
from tests.harness import refusal


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


SIGNATURE = clicks_signature(3, 2)


def request(**changes):
    good = {"numerical": np.zeros((4, 3), np.float32), "categorical": np.zeros((4, 2), np.int64)}
    return {name: array for name, array in {**good, **changes}.items() if array is not None}


def with_nan():
    values = np.zeros((4, 3), np.float32)
    values[2, 1] = np.nan
    return values


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"categorical": None}, ["'categorical'"]),
        ({"other": np.zeros((4, 1))}, ["'other'", "categorical, numerical"]),
        ({"numerical": np.zeros((4, 3))}, ["'numerical'", "float32", "float64"]),
        ({"categorical": np.zeros((4, 2), np.int32)}, ["int64", "int32"]),
        ({"numerical": np.zeros((4, 2), np.float32)}, ["[rows, 3]", "[4, 2]"]),
        ({"numerical": np.zeros(3, np.float32)}, ["[rows, 3]", "[3]"]),
        ({"numerical": np.zeros((5, 3), np.float32)}, ["numerical 5", "categorical 4"]),
        (
            {"numerical": np.zeros((0, 3), np.float32), "categorical": np.zeros((0, 2), np.int64)},
            ["row"],
        ),
        ({"numerical": with_nan()}, ["'numerical'", "row 2", "feature 1", "nan"]),
        ({"numerical": -with_nan() + np.float32(np.inf)}, ["row 0", "feature 0", "inf"]),
    ],
)
def test_a_request_that_does_not_fit_is_refused(changes, facts):
    check_arrays(SIGNATURE, request())
    with refusal(*facts, kind=BadRequestError):
        check_arrays(SIGNATURE, request(**changes))


def test_what_is_optional_may_be_left_out_and_lengths_may_differ():
    signature = ratings_signature(10)
    for length in (1, 500):
        check_arrays(signature, {"history": np.ones((2, length), np.int64)})
    with pytest.raises(BadRequestError, match="expected bool, got int64"):
        check_arrays(
            signature,
            {"history": np.ones((2, 3), np.int64), "exclude_seen": np.ones((2, 1), np.int64)},
        )


@pytest.mark.parametrize("bad", [-1, 5, 2**62])
def test_an_id_outside_its_range_is_named(bad):
    ids = np.array([[4, 6], [0, 0]])
    check_ids("categorical", ids, np.array([5, 7]))
    ids[1, 0] = bad
    with refusal("row 1", "feature 0", bad, "[0, 5)", kind=BadRequestError):
        check_ids("categorical", ids, np.array([5, 7]))
