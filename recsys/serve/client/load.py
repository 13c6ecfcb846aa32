# SPDX-License-Identifier: Apache-2.0
"""Latency and throughput of a served model under concurrent clients."""

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from recsys.serve.client.connection import Endpoint, EndpointError, ServerTimes
from recsys.serve.client.requests import Arrays, num_rows
from recsys.train.measure.timing import LatencySummary

TABLE_HEAD = (
    "   batch clients   p50 ms   p90 ms   p99 ms       rows/s  requests/s  queue ms compute ms "
    "requests/execution"
)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """Latency and throughput as clients and the server measure them.

    Attributes:
        batch_size: rows of a request; the mean if they differ.
        latency: latency of the requests, as clients see it.
        requests_per_s: throughput of all clients together.
        server: statistics of the server during the measurement.
    """

    batch_size: float
    concurrency: int
    latency: LatencySummary
    requests_per_s: float
    server: ServerTimes

    @property
    def rows_per_s(self) -> float:
        """Throughput in rows."""
        return self.requests_per_s * self.batch_size

    def table_row(self) -> str:
        """Formats the columns of `TABLE_HEAD`."""
        latency, server = self.latency, self.server
        requests, executions = max(server.requests, 1), max(server.executions, 1)
        return (
            f"{batch_text(self.batch_size)} {self.concurrency:7d} {latency.p50_s * 1e3:8.2f} "
            f"{latency.p90_s * 1e3:8.2f} {latency.p99_s * 1e3:8.2f} {self.rows_per_s:12,.0f} "
            f"{self.requests_per_s:11,.1f} {server.queue_s / requests * 1e3:9.2f} "
            f"{server.compute_s / requests * 1e3:10.2f} {server.requests / executions:18.2f}"
        )


def measure_load(
    endpoint: Endpoint, requests: Sequence[Arrays], concurrency: int, seconds: float
) -> LoadResult:
    """Measures a model under clients that each wait for their response.

    Args:
        endpoint: connection to the model; each client opens another one.
        requests: requests to send in turn; they are checked before the measurement.
        concurrency: number of clients.
        seconds: length of the measurement, after a warm-up of a tenth of it.

    Raises:
        BadRequestError: a request does not fit the model.
        EndpointError: a request failed.
    """
    durations: list[list[float]] = [[] for _ in range(concurrency)]
    rows = [0] * concurrency
    count_from = float("inf")

    def send(client: int, own: Endpoint) -> None:
        for request in itertools.islice(itertools.cycle(requests), client, None):
            if clients.finish.is_set():
                return
            started = time.perf_counter()
            own.send(request)
            if started >= count_from:
                durations[client].append(time.perf_counter() - started)
                rows[client] += num_rows(request)

    clients = Clients(endpoint, requests, concurrency, send)
    with clients.connected():
        try:
            clients.finish.wait(seconds / 10)
            before = endpoint.times()
            count_from = time.perf_counter()
            clients.finish.wait(seconds)
            while not (all(durations) or clients.finish.wait(0.01)):
                pass  # a request may take longer than the whole measurement
            after = endpoint.times()
        finally:
            clients.finish.set()
    elapsed = time.perf_counter() - count_from
    taken = list(itertools.chain.from_iterable(durations))
    return LoadResult(
        batch_size=sum(rows) / len(taken),
        concurrency=concurrency,
        latency=LatencySummary.of(taken),
        requests_per_s=len(taken) / elapsed,
        server=after.since(before),
    )


def batch_text(batch_size: float) -> str:
    """Formats the number of rows of a request as a table column."""
    return f"{round(batch_size, 1):8.10g}"


class Clients:
    """Clients of a model, each with a thread and a connection.

    Args:
        send: sends the requests of a client, given its number and connection.

    Attributes:
        started: time at which all clients were connected, before the first request.
        finish: event that ends the clients, also set by a client that fails.

    Raises:
        BadRequestError: a request does not fit the model.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[Arrays],
        count: int,
        send: Callable[[int, Endpoint], None],
    ) -> None:
        for request in requests:
            endpoint.check(request)
        self._endpoint, self._send = endpoint, send
        self._failures: list[EndpointError] = []
        self.started = 0.0
        self.finish = threading.Event()
        self._all_connected = threading.Barrier(count + 1, action=self._begin)
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]

    def _begin(self) -> None:
        self.started = time.perf_counter()

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Connects all clients, and runs the block while they send.

        Raises:
            EndpointError: a client could not connect, or a request failed.
        """
        started = []
        try:
            for thread in self._threads:
                thread.start()
                started.append(thread)
            self._all_connected.wait()
            yield
        except threading.BrokenBarrierError:
            raise self._failures[0] from None
        except RuntimeError:  # the system cannot start more threads
            self._all_connected.abort()
            raise
        finally:
            for thread in started:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self, client: int) -> None:
        try:
            with self._endpoint.again() as own:
                self._all_connected.wait()
                self._send(client, own)
        except EndpointError as error:
            self._failures.append(error)
            self.finish.set()
            self._all_connected.abort()
        except threading.BrokenBarrierError:
            return  # another client could not connect
