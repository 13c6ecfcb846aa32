# SPDX-License-Identifier: Apache-2.0
"""The load program's schedule, its judgement of a run, and its fit of memory."""

import numpy as np
import pytest

from tests.load.changes import Event
from tests.load.client import ERROR, REFUSED, RIGHT, WRONG, Record
from tests.load.figures import Run, recoveries
from tests.load.memory import Series, slope
from tests.load.messages import Message
from tests.load.schedule import KILL_INSTANCE, KILL_SERVER, draw, plan

GOOD, BAD = (
    Message("1 row", "clicks", "json", b"", form="line"),
    Message("bad", "clicks", "json", b""),
)
OTHER = Message("1 row", "items", "json", b"", form="history")
MESSAGES = (GOOD, BAD, OTHER)


def test_a_seed_draws_the_same_requests_and_events_each_time():
    shares = np.array([0.5, 0.3, 0.2])
    one, again, other = (draw(shares, 100.0, 60.0, seed) for seed in (1, 1, 3))
    assert (one.due == again.due).all()
    assert (one.numbers == again.numbers).all()
    assert len(one.due) != len(other.due) or (one.due != other.due).any()
    assert plan(3600, 1) == plan(3600, 1) != plan(3600, 2)


@pytest.mark.parametrize("seconds", [60, 3600])
def test_a_plan_has_the_server_s_kills_in_its_first_half(seconds):
    planned = plan(seconds, 1)
    times = [due for due, _ in planned]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < seconds
    kills = [due for due, kind in planned if kind in (KILL_INSTANCE, KILL_SERVER)]
    assert np.diff(kills).min() > 0.2 * seconds / len(kills)
    of_server = [due for due, kind in planned if kind == KILL_SERVER]
    assert of_server
    assert seconds == 60 or max(of_server) < seconds / 2


def record(*requests: tuple[float, float, int, int]) -> Record:
    """Returns the record of requests (due, done, message, outcome)."""
    due, done, numbers, outcome = map(np.array, zip(*requests, strict=True))
    texts = {i: "text" for i, code in enumerate(outcome.tolist()) if code in (ERROR, WRONG)}
    return Record(due, numbers, due, done, outcome, texts)


def run_of(made: Record, *events: Event) -> Run:
    return Run(made, MESSAGES, events, [], {}, 60.0, 0.1)


KILL = Event(KILL_INSTANCE, 10.0, 13.0, "clicks", "")


def test_a_recovery_ends_with_the_first_right_answer_after_the_last_error():
    made = record(
        *((9.9, 10.2, 0, ERROR), (11.0, 11.1, 0, ERROR), (11.5, 11.6, 0, RIGHT)),
        # Answered, but late, and an error of a bad request, or of another model.
        *((12.0, 13.5, 0, RIGHT), (13.8, 13.9, 1, REFUSED), (13.8, 13.9, 2, ERROR)),
        *((14.0, 14.5, 0, RIGHT), (15.0, 15.1, 0, RIGHT)),
    )
    (found,) = recoveries(made, MESSAGES, [KILL])
    assert (found.seconds, found.unserved) == (4.5, 3)
    (whole,) = recoveries(made, MESSAGES, [Event(KILL_SERVER, 10.0, 13.0, "", "")])
    assert whole.unserved == 4
    (never,) = recoveries(record((11.0, 11.1, 0, ERROR)), MESSAGES, [KILL])
    assert never.seconds == np.inf
    (unnoticed,) = recoveries(record((11.0, 11.1, 0, RIGHT)), MESSAGES, [KILL])
    assert (unnoticed.seconds, unnoticed.unserved) == (0.0, 0)


@pytest.mark.parametrize(
    ("request_", "faulty"),
    [
        ((11.0, 11.1, 0, ERROR), False),  # after the kill
        ((11.0, 11.1, 2, ERROR), True),  # of a model that was not hit
        ((30.0, 30.1, 0, ERROR), True),
        ((30.0, 30.1, 1, ERROR), True),
        ((11.0, 11.1, 0, WRONG), True),
        ((30.0, 30.1, 1, WRONG), True),
        ((30.0, 30.1, 0, RIGHT), False),
    ],
)
def test_only_errors_after_a_kill_are_no_faults(request_, faulty):
    made = record(request_, (12.0, 12.1, 0, RIGHT), (40.0, 40.1, 0, RIGHT))
    faults = run_of(made, KILL).figures(5.0)["faults"]
    assert bool(faults) == faulty
    assert all("text" in fault for fault in faults)


def test_a_recovery_that_takes_too_long_is_a_fault():
    made = record((11.0, 11.1, 0, ERROR), (15.9, 16.0, 0, RIGHT))
    (fault,) = run_of(made, KILL).figures(5.0)["faults"]
    assert "6.0 s" in fault
    assert run_of(made, KILL).figures(7.0)["faults"] == []


def samples(level: float, growth: float, start: float, end: float, seed: int) -> Series:
    seconds = np.arange(start, end, 2.0)
    noise = np.random.default_rng(seed).normal(0, 0.5, len(seconds))
    return Series(seconds.tolist(), (level + growth * seconds / 3600 + noise).tolist())


@pytest.mark.parametrize("growth", [0.0, 30.0])
def test_a_slope_is_that_within_processes(growth):
    """Not that from one process to its successor, which holds more."""
    series = [samples(50, growth, 0, 1500, 1), samples(80, growth, 1510, 3600, 2)]
    fitted = slope(series, 900, 3600)
    assert abs(fitted.mib_per_h - growth) < 4 * fitted.error
    assert 0 < fitted.error < 1
    assert fitted.is_flat == (growth == 0)
    assert np.isnan(slope([], 0, 60).mib_per_h)
