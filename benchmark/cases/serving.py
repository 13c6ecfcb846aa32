# SPDX-License-Identifier: Apache-2.0
"""Latency, throughput and memory of a DLRM on a Triton server.

    python -m benchmark.run serving                   # clients, backends, arrivals at random
    python -m benchmark.run serving --measured one_client
    python -m benchmark.run serving --measured memory     # instances that share the tables

Needs the environment of `make triton-env`. Deploys NVIDIA's default DLRM with random weights (26
tables of 100,000 rows of 128: 1.33 GB), sends requests over gRPC from this machine, and runs the
same version in this process before and after each measurement. Measures the Python backend, with
and without dynamic batching, and the native backend if it is built. Requests that arrive at random
determine the largest rate at which the 99th percentile of the latency stays within `--p99_ms`. Ids
are uniform, the slowest case. Fails if instances that share tables take more memory than
`memory_limit`.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from benchmark.case import Case, Group, Key, Values
from benchmark.peers import perf_analyzer
from benchmark.peers.served_dlrm import NAME, DeployedDlrm
from benchmark.processes import ProcessMemory, process_memory
from benchmark.record import Record
from recsys.resources import available_cores
from recsys.serve.client import load
from recsys.serve.client.arrivals import ArrivalsResult, find_largest_rate, measure_arrivals
from recsys.serve.client.connection import Endpoint, predict_in_order
from recsys.serve.client.requests import Arrays
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.manifest import Backend
from recsys.serve.served import ServedModel
from recsys.serve.server import native_backend
from recsys.serve.server.instances import find_instances
from recsys.serve.server.process import TritonServer
from recsys.settings import setting
from recsys.train.measure.timing import LatencySummary

MIB = 1 << 20
BESIDES_TABLES = 300 * MIB
"""Bytes that an instance may need besides its tables: Python, torch, requests."""
TOGETHER, ALLOWED, OWN = "PSS together", "PSS allowed", "largest of its own"
_MEMORY_ROUNDS = 40
_MOST_PERF_ANALYZER_ROWS = 256
"""Most rows of a request of perf_analyzer, which would prepare 4,096 rows for minutes."""


def backends() -> tuple[Backend, ...]:
    """Returns the backends that are built."""
    return ("python", "native") if native_backend.is_built() else ("python",)


def compared() -> dict[str, ServingSettings]:
    """Returns the settings that are compared, by the name of the candidate."""
    settings = {
        "batching": ServingSettings(threads=1),
        "plain": ServingSettings(dynamic_batching=False, threads=1),
        "native": ServingSettings(backend="native", threads=1),
    }
    return {name: s for name, s in settings.items() if s.backend in backends()}


def memory_limit(table_bytes: int, instances: int) -> float:
    """Returns the bytes that instances may use: tables once, plus a margin."""
    return 1.2 * (table_bytes + instances * BESIDES_TABLES)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Serving(Case):
    """A deployed DLRM under load, or the memory of its instances."""

    repeats: ClassVar[int] = 2

    measured: Literal["load", "one_client", "memory"] = setting("load", "What to measure")
    tables: int = setting(26, "Number of tables")
    table_rows: int = setting(100_000, "Rows of each table")
    batch_sizes: tuple[int, ...] = setting((1, 64, 4096), "Rows of a request")
    concurrency: tuple[int, ...] = setting((1, 4, 16), "Numbers of concurrent clients")
    instances: tuple[int, ...] = setting((1, 2, 4), "Numbers of instances to measure in memory")
    seconds: float = setting(4.0, "Seconds of each measurement")
    clients: Literal["auto", "perf_analyzer", "python"] = setting(
        "auto",
        f"Client for requests up to {_MOST_PERF_ANALYZER_ROWS} rows; Python sends larger ones",
    )
    p99_ms: float = setting(
        10.0, "Limit in ms of the 99th percentile, for requests that arrive at random"
    )
    arrival_clients: int = setting(32, "Most requests in flight that arrive at random")

    @property
    def name(self) -> str:
        """Name of the results."""
        return "serving" if self.measured == "load" else f"serving_{self.measured}"

    def config(self) -> dict[str, Any]:
        """Returns the model, and how it is loaded."""
        config: dict[str, Any] = {
            "model": "NVIDIA's DLRM",
            "tables": f"{self.tables} x {self.table_rows:,} rows x 128",
            "ids": "uniform",
        }
        if self.measured == "memory":
            return config
        config |= {"instances": 1, "threads": 1, "protocol": "gRPC", "clients": self._program()}
        return config | {"p99_ms": self.p99_ms, "arrival_clients": self.arrival_clients}

    def groups(self, folder: Path) -> Iterator[Group]:
        """Yields the candidates under load, or each number of instances."""
        deployed = DeployedDlrm.make(folder, (self.table_rows,) * self.tables)
        if self.measured == "memory":
            pairs = [(backend, count) for backend in backends() for count in self.instances]
            measure = functools.partial(measure_memory, deployed)
            yield Group(
                candidates={f"{b} {n}": functools.partial(measure, b, n) for b, n in pairs},
                once=True,
            )
            return
        settings = compared()
        if self.measured == "one_client":
            settings = {"batching": settings["batching"]}
        here = {s.backend: deployed.here(s.backend) for s in settings.values()}
        yield Group(
            candidates={
                name: functools.partial(self._load, deployed, name, serving, here[serving.backend])
                for name, serving in settings.items()
            }
        )

    def _program(self) -> str:
        has_it = perf_analyzer.find_perf_analyzer() is not None
        return ("perf_analyzer" if has_it else "python") if self.clients == "auto" else self.clients

    def _load(
        self,
        deployed: DeployedDlrm,
        name: str,
        serving: ServingSettings,
        here: ServedModel,
        _seed: int,
    ) -> Values:
        """Measures a server, and the same model in this process."""
        values: dict[Key, float] = {}
        is_load = self.measured == "load"
        with deployed.serve(serving) as server, _endpoint(server) as endpoint:
            for rows in self.batch_sizes:
                requests = deployed.draw_requests(rows)
                use_python = self._program() == "python" or rows > _MOST_PERF_ANALYZER_ROWS
                measure = load.measure_load if use_python else perf_analyzer.measure_load
                alone: list[float] = []
                for clients in self.concurrency if is_load else (1,):
                    beside = run_in_process(here, requests, self.seconds / 4)
                    loaded = measure(endpoint, requests, clients, self.seconds)
                    beside += run_in_process(here, requests, self.seconds / 4)
                    counted = "1 client" if clients == 1 else f"{clients} clients"
                    row = f"batch {rows}, {counted}, {name}"
                    values |= _latencies(row, loaded.latency, loaded.rows_per_s)
                    ratio = loaded.rows_per_s / (rows * len(beside) / sum(beside))
                    values[Key(row, "throughput over in-process", "x")] = ratio
                    alone += beside
                if is_load and serving.dynamic_batching:
                    rate = self._largest_rate(endpoint, requests) * rows
                    values[
                        Key(f"batch {rows}, arrivals, {name}", "within the p99", "samples/s")
                    ] = rate
                if is_load and name != "plain":  # plain has the model of `batching`
                    row = f"batch {rows}, in process{_suffix(serving.backend)}"
                    rate = rows * len(alone) / sum(alone)
                    values |= _latencies(row, LatencySummary.of(alone), rate)
        return values

    def _largest_rate(self, endpoint: Endpoint, requests: Sequence[Arrays]) -> float:
        """Returns the most requests per second within `p99_ms`; 0 if none."""

        def measure(rate: float) -> ArrivalsResult:
            seconds = self.seconds / 2
            return measure_arrivals(endpoint, requests, rate, self.arrival_clients, seconds)

        best = find_largest_rate(measure, self.p99_ms / 1e3, first_rate=100.0)
        return 0.0 if best is None else best.rate

    def fault(self, records: Sequence[Record]) -> str:
        """Names the instances that take too much memory."""
        values = {(r.candidate, r.metric): r.value or 0.0 for r in records}
        above = [
            row
            for row, metric in values
            if metric == TOGETHER and values[row, TOGETHER] > values[row, ALLOWED]
        ]
        return f"more memory than allowed: {', '.join(above)}" if above else ""


def _suffix(backend: Backend) -> str:
    return "" if backend == "python" else f", {backend}"


def _latencies(row: str, latency: LatencySummary, rows_per_s: float) -> dict[Key, float]:
    return {
        Key(row, "p50", "ms"): latency.p50_s * 1e3,
        Key(row, "p90", "ms"): latency.p90_s * 1e3,
        Key(row, "p99", "ms"): latency.p99_s * 1e3,
        Key(row, "throughput", "samples/s"): rows_per_s,
    }


def run_in_process(served: ServedModel, requests: Sequence[Arrays], seconds: float) -> list[float]:
    """Measures the seconds of each request in this process, after a warm-up."""
    served.predict([requests[-1]])
    durations: list[float] = []
    while sum(durations) < seconds or len(durations) < 3:
        started = time.perf_counter()
        served.predict([requests[len(durations) % len(requests)]])
        durations.append(time.perf_counter() - started)
    return durations


def _endpoint(server: TritonServer) -> Endpoint:
    return Endpoint(server.grpc_url, NAME, protocol="grpc")


def measure_memory(deployed: DeployedDlrm, backend: Backend, instances: int, _seed: int) -> Values:
    """Measures the memory of instances, each of which has read all tables."""
    measured = _memory(deployed, backend, instances)
    counted = "1 instance" if instances == 1 else f"{instances} instances"
    row = counted + _suffix(backend)
    return {
        Key(row, TOGETHER, "MiB"): sum(instance.pss for instance in measured) / MIB,
        Key(row, ALLOWED, "MiB"): memory_limit(deployed.table_bytes, instances) / MIB,
        Key(row, OWN, "MiB"): max(instance.anonymous for instance in measured) / MIB,
    }


def _memory(deployed: DeployedDlrm, backend: Backend, instances: int) -> list[ProcessMemory]:
    """Returns the memory of the instances once they read their tables."""
    threads = max(1, available_cores() // instances)
    serving = ServingSettings(
        backend=backend, dynamic_batching=False, instances=instances, threads=threads
    )
    with deployed.serve(serving) as server, _endpoint(server) as endpoint:
        requests = deployed.every_row()
        for _ in range(_MEMORY_ROUNDS):
            for _ in predict_in_order(endpoint, requests, concurrency=8):
                pass
            native = backend == "native"
            pids = [server.pid] if native else [i.pid for i in find_instances(server.pid)]
            now = [process_memory(pid) for pid in pids]
            if all(instance.rss > 0.95 * deployed.table_bytes for instance in now):
                return now
    raise RuntimeError("an instance has not read its tables; repeat on a machine with idle cores")


CASE = Serving
