# SPDX-License-Identifier: Apache-2.0
"""Latency of a served model under requests that arrive at a given rate.

Clients that wait for their reply slow down with the server and hide its worst moments. Here
requests arrive by a Poisson process, whatever the server does. Latency counts from the moment at
which a request was due, so waiting for a free client counts as waiting for the server.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from recsys.serve.client.connection import Endpoint
from recsys.serve.client.load import Clients, batch_text
from recsys.serve.client.requests import Arrays, num_rows
from recsys.train.measure.timing import LatencySummary

ARRIVALS_HEAD = (
    "   batch  rate/s clients   p50 ms   p90 ms   p99 ms       rows/s  answered as they arrive"
)

_DOUBLINGS = 40
"""Largest number of doublings of the first rate."""
_HALVINGS = 6
"""Halvings of the interval that holds the largest rate: to 1/64 of a doubling."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArrivalsResult:
    """Latency of requests at a rate.

    Attributes:
        batch_size: rows of a request; the mean if they differ.
        rate: requests that arrive per second.
        clients: requests that can be in flight.
        latency: time from the arrival of a request to its reply.
        arrived: requests of the measurement.
        arriving_s: seconds from the start to the last arrival.
        elapsed_s: seconds from the start to the last reply.
    """

    batch_size: float
    rate: float
    clients: int
    latency: LatencySummary
    arrived: int
    arriving_s: float
    elapsed_s: float

    @property
    def keeping_up(self) -> float:
        """Replies per second divided by arrivals per second; a server that keeps up has 1."""
        return self.arriving_s / self.elapsed_s

    @property
    def requests_per_s(self) -> float:
        """Replies per second."""
        return self.arrived / self.elapsed_s

    def table_row(self) -> str:
        """Formats the columns of `ARRIVALS_HEAD`."""
        latency = self.latency
        rows_per_s = self.requests_per_s * self.batch_size
        return (
            f"{batch_text(self.batch_size)} {self.rate:7,.0f} {self.clients:7d} "
            f"{latency.p50_s * 1e3:8.2f} {latency.p90_s * 1e3:8.2f} {latency.p99_s * 1e3:8.2f} "
            f"{rows_per_s:12,.0f} {self.keeping_up:24.1%}"
        )


def arrival_times(rate: float, seconds: float, seed: int) -> npt.NDArray[np.float64]:
    """Draws the times of a Poisson process, in seconds; at least one."""
    generator = np.random.default_rng(seed)
    count = max(1, round(rate * seconds))
    return generator.exponential(1 / rate, count).cumsum()


def measure_arrivals(
    endpoint: Endpoint,
    requests: Sequence[Arrays],
    rate: float,
    num_clients: int,
    seconds: float,
) -> ArrivalsResult:
    """Measures a model under requests that arrive at a given rate.

    Endpoint, requests and errors are those of `measure_load`.

    Args:
        endpoint: connection to the model.
        requests: requests to send in turn.
        rate: requests per second.
        num_clients: requests that can be in flight; others wait, and their latency grows.
        seconds: length of the arrivals; the first tenth of them is a warm-up and does not count.
    """
    due = arrival_times(rate, seconds, seed=0)
    replied = np.zeros_like(due)
    numbers = itertools.count()
    sent = [num_rows(requests[number % len(requests)]) for number in range(len(due))]

    def send(_: int, own: Endpoint) -> None:
        while not clients.finish.is_set() and (number := next(numbers)) < len(due):
            wait = clients.started + due[number] - time.perf_counter()
            if wait > 0 and clients.finish.wait(wait):
                return
            own.send(requests[number % len(requests)])
            replied[number] = time.perf_counter() - clients.started

    clients = Clients(endpoint, requests, num_clients, send)
    with clients.connected():
        pass  # clients end with the last arrival
    return ArrivalsResult(
        batch_size=sum(sent) / len(sent),
        rate=rate,
        clients=num_clients,
        latency=LatencySummary.of((replied - due)[len(due) // 10 :].tolist()),
        arrived=len(due),
        arriving_s=float(due[-1]),
        elapsed_s=float(replied.max()),
    )


def find_largest_rate(
    measure: Callable[[float], ArrivalsResult], p99_s: float, first_rate: float
) -> ArrivalsResult | None:
    """Finds the largest rate whose 99th percentile stays within a limit.

    The rate, in requests per second, is doubled or halved until the limit lies between two rates.
    Then the interval is halved six times.

    Returns:
        The measurement at the largest rate within the limit; None if every rate down to a
        thousandth of the first exceeds the limit.
    """
    best: ArrivalsResult | None = None
    low, high, rate, halvings = 0.0, float("inf"), first_rate, 0
    highest = first_rate * 2**_DOUBLINGS
    while halvings <= _HALVINGS and first_rate / 1000 <= rate < highest:
        result = measure(rate)
        if result.latency.p99_s <= p99_s:
            best, low = result, rate
        else:
            high = rate
        if not low:
            rate /= 2
        elif high == float("inf"):
            rate *= 2
        else:
            rate = (low + high) / 2
            halvings += 1
    return best
