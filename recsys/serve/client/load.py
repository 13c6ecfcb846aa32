# SPDX-License-Identifier: Apache-2.0
"""Latency and throughput of a served model under concurrent clients."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Sequence

from recsys.serve.client.connection import Endpoint, EndpointError, ServerTimes
from recsys.serve.client.requests import Arrays
from recsys.train.timing import LatencySummary

TABLE_HEAD = (
    "   batch clients   p50 ms   p90 ms   p99 ms       rows/s  requests/s  queue ms compute ms "
    "requests/execution"
)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """Latency and throughput seen by clients and by the server.

    Attributes:
        batch_size: rows of a request.
        concurrency: number of clients.
        latency: latency of the requests, as a client sees it.
        requests_per_s: throughput of all clients together.
        server: statistics of the server over the measurement.
    """

    batch_size: int
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
            f"{self.batch_size:8d} {self.concurrency:7d} {latency.p50_s * 1e3:8.2f} "
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
        requests: requests of one size, sent in turn; checked before the measurement.
        concurrency: number of clients.
        seconds: length of the measurement, after a warm-up of a tenth of it.

    Raises:
        BadRequestError: a request does not fit the model.
        EndpointError: a request failed.
    """
    for request in requests:
        endpoint.check(request)
    load = _Load(endpoint, requests, concurrency)
    for thread in load.threads:
        thread.start()
    try:
        load.all_connected.wait()
        load.finish.wait(seconds / 10)
        before = endpoint.times()
        load.count_from = started = time.perf_counter()
        load.finish.wait(seconds)
        while not (all(load.durations) or load.finish.wait(0.01)):
            pass  # a request may take longer than the whole measurement
        after = endpoint.times()
    except threading.BrokenBarrierError:
        raise load.failures[0] from None
    finally:
        load.finish.set()
        for thread in load.threads:
            thread.join()
    elapsed = time.perf_counter() - started
    if load.failures:
        raise load.failures[0]
    taken = [duration for of_client in load.durations for duration in of_client]
    return LoadResult(
        batch_size=len(next(iter(requests[0].values()))),
        concurrency=concurrency,
        latency=LatencySummary.of(taken),
        requests_per_s=len(taken) / elapsed,
        server=after.since(before),
    )


class _Load:
    """The clients of a measurement, a thread each.

    Attributes:
        durations: seconds of each request, by client.
        failures: errors of clients; the first ends the measurement.
        finish: set to stop the clients.
        all_connected: barrier of the clients and the measurement.
        count_from: time from which requests count.
    """

    def __init__(self, endpoint: Endpoint, requests: Sequence[Arrays], concurrency: int) -> None:
        self._endpoint = endpoint
        self._requests = requests
        self.durations: list[list[float]] = [[] for _ in range(concurrency)]
        self.failures: list[EndpointError] = []
        self.finish = threading.Event()
        self.all_connected = threading.Barrier(concurrency + 1)
        self.count_from = float("inf")
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(concurrency)]

    def _run(self, client: int) -> None:
        try:
            with self._endpoint.again() as own:
                self.all_connected.wait()
                self._send(client, own)
        except EndpointError as error:
            self.failures.append(error)
            self.finish.set()
            self.all_connected.abort()
        except threading.BrokenBarrierError:
            return  # another client could not connect

    def _send(self, client: int, own: Endpoint) -> None:
        for request in itertools.islice(itertools.cycle(self._requests), client, None):
            if self.finish.is_set():
                return
            started = time.perf_counter()
            own.send(request)
            if started >= self.count_from:
                self.durations[client].append(time.perf_counter() - started)
