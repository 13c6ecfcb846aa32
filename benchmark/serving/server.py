# SPDX-License-Identifier: Apache-2.0
"""Measures latency, throughput and memory of a DLRM on a Triton server.

    .venv-triton/bin/python -m benchmark.serving.server

deploys NVIDIA's default DLRM with random weights (26 tables of 100,000 rows of 128: 1.33 GB), sends
requests over gRPC from this machine, and runs the same version in this process before and after
each measurement: with the Python backend, with and without dynamic batching, and with the native
one, where it is built. Then requests arrive at random moments, and the largest rate is searched at
which the 99th percentile of the latency stays within `--p99_ms`. Ids are uniform, the slowest case.
Exits 1 if instances that share tables take more memory than `memory_limit`.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmark.record import RESULTS, Direction, make_record, write_records
from benchmark.serving import perf_analyzer
from benchmark.serving.model import NAME, DeployedDlrm
from recsys.resources import available_cores
from recsys.serve.client import load
from recsys.serve.client.arrivals import ArrivalsResult, find_largest_rate, measure_arrivals
from recsys.serve.client.connection import Endpoint, predict_in_order
from recsys.serve.client.requests import Arrays
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.manifest import Backend
from recsys.serve.served import ServedModel
from recsys.serve.server import native_backend
from recsys.serve.server.memory import InstanceMemory, instance_memory, process_memory
from recsys.serve.server.process import TritonServer
from recsys.train.timing import LatencySummary

MIB = 1 << 20
BESIDES_TABLES = 300 * MIB
"""Bytes that an instance may need besides its tables: Python, torch, requests."""
METRICS: dict[str, tuple[str, Direction]] = {
    "p50": ("ms", "lower"),
    "p90": ("ms", "lower"),
    "p99": ("ms", "lower"),
    "throughput": ("samples/s", "higher"),
    "of in-process": ("x", "higher"),
    "within the p99": ("samples/s", "higher"),
    "PSS together": ("MiB", "lower"),
    "PSS allowed": ("MiB", "lower"),
    "largest of its own": ("MiB", "lower"),
}
"""Metric -> unit, and whether higher or lower is better."""
ONE_CLIENT = "serving_one_client"
"""Name of the results that docs/results.md shows."""
_MEMORY_ROUNDS = 40

_CLIENTS = {"perf_analyzer": perf_analyzer.measure_load, "python": load.measure_load}
"""Name of the clients -> function that measures a model under them."""
_MOST_PERF_ANALYZER_ROWS = 256
"""Rows of a request: perf_analyzer prepares 4,096 for minutes, Python's clients do not."""

Samples = defaultdict[str, list[float]]


def candidates() -> dict[str, ServingSettings]:
    """Returns the settings that are compared, by the name of the candidate."""
    settings = {
        "batching": ServingSettings(threads=1),
        "plain": ServingSettings(dynamic_batching=False, threads=1),
        "native": ServingSettings(backend="native", threads=1),
    }
    return {name: s for name, s in settings.items() if s.backend in _backends()}


def _backends() -> tuple[Backend, ...]:
    return ("python", "native") if native_backend.is_built() else ("python",)


def run_in_process(served: ServedModel, requests: Sequence[Arrays], seconds: float) -> list[float]:
    """Measures the seconds of each request in this process, after a warm-up."""
    served.predict([requests[-1]])
    durations: list[float] = []
    while sum(durations) < seconds or len(durations) < 3:
        started = time.perf_counter()
        served.predict([requests[len(durations) % len(requests)]])
        durations.append(time.perf_counter() - started)
    return durations


class _Progress:
    """Reports progress and the remaining time at the current rate."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._started = total, 0, time.perf_counter()

    def step(self) -> str:
        self._done += 1
        left = (time.perf_counter() - self._started) / self._done * (self._total - self._done)
        return f"[{self._done}/{self._total}, {left / 60:.1f} min left]"


def measure_latencies(
    options: argparse.Namespace, deployed: DeployedDlrm
) -> dict[str, dict[str, list[float]]]:
    """Measures one instance on one thread, with each of `candidates`.

    Returns:
        candidate -> metric -> value of each round.
    """
    samples: defaultdict[str, Samples] = defaultdict(lambda: defaultdict(list))
    alone: defaultdict[tuple[Backend, int], list[float]] = defaultdict(list)
    requests = {rows: deployed.draw_requests(rows) for rows in options.batch_sizes}
    cells = list(itertools.product(requests, options.concurrency))
    served = {backend: deployed.here(backend) for backend in _backends()}
    compared = candidates()
    progress = _Progress(options.rounds * len(compared) * len(cells))
    for _ in range(options.rounds):
        for name, serving in compared.items():
            print(f"{name}\n{load.TABLE_HEAD}  of in-process")
            here = served[serving.backend]
            with deployed.serve(serving) as server, Endpoint(server.grpc_url, NAME) as endpoint:
                for rows, clients in cells:
                    given = requests[rows]
                    beside = run_in_process(here, given, options.seconds / 4)
                    program = options.clients if rows <= _MOST_PERF_ANALYZER_ROWS else "python"
                    loaded = _CLIENTS[program](endpoint, given, clients, options.seconds)
                    beside += run_in_process(here, given, options.seconds / 4)
                    alone[serving.backend, rows] += beside
                    ratio = loaded.rows_per_s / (rows * len(beside) / sum(beside))
                    print(f"{loaded.table_row()} {ratio:13.2f}x  {progress.step()}", flush=True)
                    cell = samples[f"batch {rows}, {_clients(clients)}, {name}"]
                    _add(cell, loaded.latency, loaded.rows_per_s)
                    cell["of in-process"].append(ratio)
                for rows in options.batch_sizes if serving.dynamic_batching else ():
                    rate = largest_rate(options, endpoint, requests[rows])
                    samples[f"batch {rows}, arrivals, {name}"]["within the p99"].append(rate * rows)
    for (backend, rows), durations in alone.items():
        summary, rate = LatencySummary.of(durations), rows * len(durations) / sum(durations)
        name = f"batch {rows}, in process{_suffix(backend)}"
        _add(samples[name], summary, rate)
        print(f"{name}: {rate:,.0f} rows/s, p50 {summary.p50_s * 1e3:.2f} ms")
    return {name: dict(values) for name, values in samples.items()}


def largest_rate(
    options: argparse.Namespace, endpoint: Endpoint, requests: Sequence[Arrays]
) -> float:
    """Returns the most requests per second within `--p99_ms`; 0 if none."""

    def measure(rate: float) -> ArrivalsResult:
        clients = options.arrival_clients
        return measure_arrivals(endpoint, requests, rate, clients, options.seconds / 2)

    best = find_largest_rate(measure, options.p99_ms / 1e3, first_rate=100.0)
    shown = "no rate" if best is None else f"{best.rate:,.0f} requests/s"
    print(f"arriving at random: {shown} with p99 within {options.p99_ms:g} ms", flush=True)
    return 0.0 if best is None else best.rate


def _suffix(backend: Backend) -> str:
    return "" if backend == "python" else f", {backend}"


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _add(samples: Samples, latency: LatencySummary, rows_per_s: float) -> None:
    samples["p50"].append(latency.p50_s * 1e3)
    samples["p90"].append(latency.p90_s * 1e3)
    samples["p99"].append(latency.p99_s * 1e3)
    samples["throughput"].append(rows_per_s)


def memory_limit(table_bytes: int, instances: int) -> float:
    """Returns the bytes that instances may use: tables once, plus a margin."""
    return 1.2 * (table_bytes + instances * BESIDES_TABLES)


def _read_every_row(endpoint: Endpoint, deployed: DeployedDlrm) -> Iterator[None]:
    """Requests every row of the tables repeatedly; yields each round."""
    requests = deployed.every_row()
    for _ in range(_MEMORY_ROUNDS):
        for _ in predict_in_order(endpoint, requests, concurrency=8):
            pass
        yield


def _memory(server: TritonServer, backend: Backend) -> list[InstanceMemory]:
    """Returns the memory of the instances, or the server that holds them."""
    return [process_memory(server.pid)] if backend == "native" else instance_memory(server.pid)


def measure_memory(
    deployed: DeployedDlrm, instances: int, backend: Backend
) -> list[InstanceMemory]:
    """Measures the memory of instances that have each read all tables.

    Raises:
        RuntimeError: an instance got too few requests to read them.
    """
    threads = max(1, available_cores() // instances)
    serving = ServingSettings(
        backend=backend, dynamic_batching=False, instances=instances, threads=threads
    )
    with deployed.serve(serving) as server, Endpoint(server.grpc_url, NAME) as endpoint:
        for _ in _read_every_row(endpoint, deployed):
            instances_now = _memory(server, backend)
            if all(instance.rss > 0.95 * deployed.table_bytes for instance in instances_now):
                return instances_now
    raise RuntimeError("an instance has not read its tables; repeat on a machine with idle cores")


def compare_memory(
    options: argparse.Namespace, deployed: DeployedDlrm
) -> tuple[dict[str, dict[str, list[float]]], bool]:
    """Measures instances that share one model's tables.

    Returns:
        (candidate -> metric -> [value], whether all stay within `memory_limit`).
    """
    values = {}
    within = True
    for backend, instances in itertools.product(_backends(), options.instances):
        measured = measure_memory(deployed, instances, backend)
        pss = sum(instance.pss for instance in measured)
        limit = memory_limit(deployed.table_bytes, instances)
        anonymous = max(instance.anonymous for instance in measured)
        within = within and pss < limit
        print(
            f"{instances} of {options.instances[-1]} instances{_suffix(backend)}, tables of "
            f"{deployed.table_bytes / MIB:,.0f} MiB: PSS {pss / MIB:,.0f} MiB together, "
            f"{'below' if pss < limit else 'ABOVE'} {limit / MIB:,.0f} MiB; at most "
            f"{anonymous / MIB:,.0f} MiB of its own in each",
            flush=True,
        )
        counted = "1 instance" if instances == 1 else f"{instances} instances"
        values[counted + _suffix(backend)] = {
            "PSS together": [pss / MIB],
            "PSS allowed": [limit / MIB],
            "largest of its own": [anonymous / MIB],
        }
    return values, within


def _write(
    results: Path,
    benchmark: str,
    measured: Mapping[str, Mapping[str, list[float]]],
    config: Mapping[str, object],
) -> None:
    records = []
    for candidate, metrics in measured.items():
        for metric, samples in metrics.items():
            unit, direction = METRICS[metric]
            records.append(
                make_record(
                    benchmark,
                    candidate,
                    metric,
                    samples,
                    unit=unit,
                    direction=direction,
                    config=config,
                )
            )
    write_records(results / f"{benchmark}.jsonl", records)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and records; returns 1 if instances take too much memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--table_rows", type=int, default=100_000)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 64, 4096])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    best = "python" if perf_analyzer.find_perf_analyzer() is None else "perf_analyzer"
    parser.add_argument(
        "--clients",
        choices=sorted(_CLIENTS),
        default=best,
        help=f"of requests up to {_MOST_PERF_ANALYZER_ROWS} rows; larger ones come from Python's",
    )
    parser.add_argument("--p99_ms", type=float, default=10.0, help="limit of arriving requests")
    parser.add_argument("--arrival_clients", type=int, default=32, help="of them in flight")
    parser.add_argument("--rounds", type=int, default=2, help="times that each is measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of .jsonl files")
    options = parser.parse_args(arguments)
    config: dict[str, object] = {
        "model": "NVIDIA's DLRM",
        "tables": f"{options.tables} x {options.table_rows:,} rows x 128",
        "ids": "uniform",
    }
    with tempfile.TemporaryDirectory(prefix="recipes-serving-") as folder:
        deployed = DeployedDlrm.make(Path(folder), (options.table_rows,) * options.tables)
        latencies = measure_latencies(options, deployed)
        timed = {**config, "instances": 1, "threads": 1, "protocol": "gRPC"}
        timed["clients"] = options.clients
        timed |= {"p99_ms": options.p99_ms, "arrival_clients": options.arrival_clients}
        _write(options.results, "serving", latencies, timed)
        alone = {k: v for k, v in latencies.items() if k.endswith("1 client, batching")}
        _write(options.results, ONE_CLIENT, alone, timed)
        memory, within = compare_memory(options, deployed)
        _write(options.results, "serving_memory", memory, config)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
