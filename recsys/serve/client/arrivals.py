# SPDX-License-Identifier: Apache-2.0
"""Latency of a served model under requests that arrive at a rate.

Clients that wait for their reply slow down with the server and hide its worst moments. Here
requests arrive by a Poisson process, whatever the server does, and latency counts from the moment
at which a request was due: one that had to wait for a free client has waited for the server.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from recsys.serve.client.connection import Endpoint, EndpointError
from recsys.serve.client.requests import Arrays
from recsys.train.timing import LatencySummary

ARRIVALS_HEAD = (
    "   batch  rate/s clients   p50 ms   p90 ms   p99 ms       rows/s  answered as they arrive"
)

_STEPS = 6
"""Halvings of the interval in which the largest rate lies: to 1/64 of a doubling."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArrivalsResult:
    """Latency of requests at a rate.

    Attributes:
        batch_size: rows of a request.
        rate: requests that arrive per second.
        clients: requests that can be in flight.
        latency: from the arrival of a request to its reply.
        arrived: requests of the measurement.
        arriving_s: seconds from the beginning to the last arrival.
        elapsed_s: seconds from the beginning to the last reply.
    """

    batch_size: int
    rate: float
    clients: int
    latency: LatencySummary
    arrived: int
    arriving_s: float
    elapsed_s: float

    @property
    def keeping_up(self) -> float:
        """Replies per second over arrivals per second; 1 keeps up."""
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
            f"{self.batch_size:8d} {self.rate:7,.0f} {self.clients:7d} {latency.p50_s * 1e3:8.2f} "
            f"{latency.p90_s * 1e3:8.2f} {latency.p99_s * 1e3:8.2f} {rows_per_s:12,.0f} "
            f"{self.keeping_up:24.1%}"
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
    clients: int,
    seconds: float,
    seed: int = 0,
) -> ArrivalsResult:
    """Measures a model under requests that arrive at a rate.

    Args:
        endpoint: connection to the model; each client opens another one.
        requests: requests of one size, sent in turn; checked before the measurement.
        rate: requests per second.
        clients: requests that can be in flight; others wait, and their latency grows.
        seconds: length of the arrivals; those of the first tenth do not count.
        seed: seeds the arrivals.

    Raises:
        BadRequestError: a request does not fit the model.
        EndpointError: a request failed.
    """
    for request in requests:
        endpoint.check(request)
    arrivals = _Arrivals(endpoint, requests, clients, arrival_times(rate, seconds, seed))
    arrivals.run()
    first = len(arrivals.due) // 10
    latencies = arrivals.replied - arrivals.due
    return ArrivalsResult(
        batch_size=len(next(iter(requests[0].values()))),
        rate=rate,
        clients=clients,
        latency=LatencySummary.of(latencies[first:].tolist()),
        arrived=len(latencies),
        arriving_s=float(arrivals.due[-1]),
        elapsed_s=float(arrivals.replied.max()),
    )


def find_largest_rate(
    measure: Callable[[float], ArrivalsResult], p99_s: float, first_rate: float
) -> ArrivalsResult | None:
    """Finds the largest rate with a 99th percentile within a limit.

    The rate is doubled or halved until the limit lies between two rates, then the interval is
    halved six times.

    Args:
        measure: measures a rate.
        p99_s: limit of the 99th percentile, in seconds.
        first_rate: rate to begin with, in requests per second.

    Returns:
        The measurement at the largest rate within the limit; None if none above a thousandth of
        the first was.
    """
    best: ArrivalsResult | None = None
    low, high, rate = 0.0, float("inf"), first_rate
    for _ in range(40):
        result = measure(rate)
        if result.latency.p99_s <= p99_s:
            best, low = result, rate
        else:
            high = rate
        if low and high < float("inf"):
            break
        rate = rate * 2 if high == float("inf") else rate / 2
        if rate < first_rate / 1000:
            return None
    for _ in range(_STEPS):
        rate = (low + high) / 2
        result = measure(rate)
        if result.latency.p99_s <= p99_s:
            best, low = result, rate
        else:
            high = rate
    return best


class _Arrivals:
    """Clients, a thread each, that send the requests that are due.

    Attributes:
        due: [N] float64 seconds at which each request arrives.
        replied: [N] float64 seconds at which its reply came.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[Arrays],
        clients: int,
        due: npt.NDArray[np.float64],
    ) -> None:
        self._endpoint = endpoint
        self._requests = requests
        self.due = due
        self.replied = np.zeros_like(due)
        self._next = 0
        self._lock = threading.Lock()
        self._failures: list[EndpointError] = []
        self._stop = threading.Event()
        self._start = 0.0
        self._all_connected = threading.Barrier(clients + 1, action=self._begin)
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]

    def run(self) -> None:
        """Sends all requests.

        Raises:
            EndpointError: a client could not connect, or a request failed.
        """
        for thread in self._threads:
            thread.start()
        try:
            self._all_connected.wait()
        except threading.BrokenBarrierError:
            pass  # the failure is raised below
        finally:
            for thread in self._threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _begin(self) -> None:
        """Starts the clock; called by one thread when all are connected."""
        self._start = time.perf_counter()

    def _client(self) -> None:
        try:
            with self._endpoint.again() as own:
                self._all_connected.wait()
                self._send(own)
        except EndpointError as error:
            self._failures.append(error)
            self._stop.set()
            self._all_connected.abort()
        except threading.BrokenBarrierError:
            return  # another client could not connect

    def _send(self, own: Endpoint) -> None:
        while not self._stop.is_set():
            with self._lock:
                number = self._next
                self._next += 1
            if number >= len(self.due):
                return
            wait = self._start + self.due[number] - time.perf_counter()
            if wait > 0 and self._stop.wait(wait):
                return
            own.send(self._requests[number % len(self._requests)])
            self.replied[number] = time.perf_counter() - self._start
