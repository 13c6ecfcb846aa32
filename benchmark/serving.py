# SPDX-License-Identifier: Apache-2.0
"""A DLRM on a real Triton server: latency, throughput, and memory of its instances.

    .venv-triton/bin/python -m benchmark.serving

deploys NVIDIA's default DLRM with random weights (26 tables of 100,000 rows of 128: 1.33 GB), asks
it over gRPC from this machine, and compares with the same version opened in this process. Ids are
uniform, which is the slowest case.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmark.record import RESULTS, Direction, Record, make_record, write_records
from dlrm.config import DlrmConfig
from dlrm.export.from_checkpoint import DlrmExport
from dlrm.model.single import Dlrm
from dlrm.model.weights import weights_of
from serving.client import Endpoint, predict_in_order
from serving.client_load import TABLE_HEAD, measure_load
from serving.deploy import DeploySettings, deploy
from serving.model_config import ServingSettings
from serving.requests import Arrays
from serving.server import ServerSettings, TritonServer
from serving.server_memory import InstanceMemory, instance_memory
from serving.signature import CATEGORICAL, NUMERICAL
from training.checkpoint import write_checkpoint
from training.latency import DISTINCT_INPUTS

MIB = 1 << 20
METRICS: dict[str, tuple[str, Direction]] = {
    "p50": ("ms", "lower"),
    "p90": ("ms", "lower"),
    "p99": ("ms", "lower"),
    "throughput": ("samples/s", "higher"),
    "of_in_process": ("x", "higher"),
    "pss": ("MiB", "lower"),
    "largest_anonymous": ("MiB", "lower"),
}
"""Unit and direction of each figure."""
_MEMORY_ROWS = 4096
_MEMORY_ROUNDS = 20


def write_model(path: Path, table_sizes: Sequence[int]) -> DlrmConfig:
    """Writes a checkpoint of NVIDIA's default model with random weights."""
    config = DlrmConfig.from_dict({"dataset_type": "synthetic_gpu", "optimized_mlp": False})
    torch.manual_seed(0)
    model = Dlrm(config.model, table_sizes)
    write_checkpoint(path, weights_of(model), {"step": 0}, config.to_dict())
    return config


def draw_requests(config: DlrmConfig, sizes: Sequence[int], rows: int) -> list[Arrays]:
    """Draws requests of one size, more of them than a cache holds rows."""
    generator = np.random.default_rng(rows)
    shape = (rows, config.model.num_numerical_features)
    return [
        {
            NUMERICAL: generator.normal(size=shape).astype(np.float32),
            CATEGORICAL: generator.integers(0, sizes, (rows, len(sizes)), np.int64),
        }
        for _ in range(DISTINCT_INPUTS if rows <= 64 else 8)
    ]


def in_process(
    export: DlrmExport, folder: Path, requests: list[Arrays], seconds: float
) -> tuple[float, float]:
    """Returns (rows per second, median seconds) of a version in this process, on one thread."""
    torch.set_num_threads(1)
    served = export.served_class.open(folder, torch.device("cpu"))
    for request in requests[:3]:
        served.predict([request])
    durations: list[float] = []
    while sum(durations) < seconds or len(durations) < 3:
        started = time.perf_counter()
        served.predict([requests[len(durations) % len(requests)]])
        durations.append(time.perf_counter() - started)
    rows = len(requests[0][NUMERICAL])
    return rows * len(durations) / sum(durations), float(np.median(durations))


def read_every_row(endpoint: Endpoint, config: DlrmConfig, sizes: Sequence[int]) -> Iterator[None]:
    """Asks for every row of the tables, again and again; yields after each round."""
    rows = np.arange(max(sizes), dtype=np.int64)
    parts = np.array_split(rows, -(-len(rows) // _MEMORY_ROWS))
    requests = [
        {
            NUMERICAL: np.zeros((len(part), config.model.num_numerical_features), np.float32),
            CATEGORICAL: np.ascontiguousarray(part[:, None] % np.array(sizes)),
        }
        for part in parts
    ]
    for _ in range(_MEMORY_ROUNDS):
        for _ in predict_in_order(endpoint, requests, concurrency=8):
            pass
        yield


def measure_memory(
    server: TritonServer, config: DlrmConfig, sizes: Sequence[int]
) -> list[InstanceMemory]:
    """Returns the memory of instances that have each read every table.

    Raises:
        RuntimeError: an instance did not get its share of the requests.
    """
    tables = sum(sizes) * config.model.embedding_dim * 4
    with Endpoint(server.grpc_url, "dlrm") as endpoint:
        for _ in read_every_row(endpoint, config, sizes):
            found = instance_memory(server.pid)
            if all(instance.rss > 0.95 * tables for instance in found):
                return found
    raise RuntimeError("an instance has not read its tables; repeat on a machine with idle cores")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--table_rows", type=int, default=100_000)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 64, 4096])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--results", type=Path, default=RESULTS / "serving.jsonl")
    options = parser.parse_args(arguments)
    sizes = (options.table_rows,) * options.tables
    with tempfile.TemporaryDirectory(prefix="recipes-serving-") as temporary:
        folder = Path(temporary)
        config = write_model(folder / "checkpoint", sizes)
        export = DlrmExport(folder / "checkpoint")
        requests = {rows: draw_requests(config, sizes, rows) for rows in options.batch_sizes}
        records = _Records(options)
        _latencies(options, folder, export, requests, records)
        for instances in options.instances:
            _memory(folder, export, config, sizes, instances, records)
    write_records(options.results, records.found)
    return 0


class _Records:
    """The figures so far, with the settings that all of them share."""

    def __init__(self, options: argparse.Namespace) -> None:
        tables = f"{options.tables} x {options.table_rows:,} rows x 128"
        self._shared = {"model": "NVIDIA's DLRM", "tables": tables, "ids": "uniform"}
        self.found: list[Record] = []

    def add(self, candidate: str, values: Mapping[str, float], **settings: object) -> None:
        """Adds the figures of a candidate, by metric."""
        for metric, value in values.items():
            unit, direction = METRICS[metric]
            self.found.append(
                make_record(
                    "serving",
                    candidate,
                    metric,
                    [value],
                    unit=unit,
                    direction=direction,
                    config={**self._shared, **settings},
                )
            )


def _start(folder: Path, export: DlrmExport, name: str, serving: ServingSettings) -> TritonServer:
    repository = folder / name
    deploy(export, DeploySettings(repository=repository, verify=64, serving=serving))
    return TritonServer(ServerSettings(repository=repository), folder / f"{name}.log")


def _latencies(
    options: argparse.Namespace,
    folder: Path,
    export: DlrmExport,
    requests: Mapping[int, list[Arrays]],
    records: _Records,
) -> None:
    """Measures one instance on one thread, with and without dynamic batching."""
    alone: dict[int, float] = {}
    for name in ("batching", "plain"):
        batching = name == "batching"
        serving = ServingSettings(dynamic_batching=batching, threads=1)
        with _start(folder, export, name, serving) as server:
            server.wait_ready(600)
            for rows, given in requests.items():
                if rows in alone:
                    continue
                version = folder / name / "dlrm" / "1"
                alone[rows], p50_s = in_process(export, version, given, options.seconds)
                print(
                    f"in process, batch {rows}: {alone[rows]:,.0f} rows/s, p50 {p50_s * 1e3:.2f} ms"
                )
                values = {"p50": p50_s * 1e3, "throughput": alone[rows]}
                records.add(f"batch {rows}, in process", values, threads=1)
            print(f"dynamic batching {'on' if batching else 'off'}\n{TABLE_HEAD}  of in-process")
            with Endpoint(server.grpc_url, "dlrm") as endpoint:
                for rows, clients in itertools.product(requests, options.concurrency):
                    load = measure_load(endpoint, requests[rows], clients, options.seconds)
                    ratio = load.rows_per_s / alone[rows]
                    print(f"{load.table_row()} {ratio:13.2f}x", flush=True)
                    values = {
                        "p50": load.latency.p50_s * 1e3,
                        "p90": load.latency.p90_s * 1e3,
                        "p99": load.latency.p99_s * 1e3,
                        "throughput": load.rows_per_s,
                        "of_in_process": ratio,
                    }
                    records.add(f"batch {rows}, {clients} clients, {name}", values, threads=1)


def _memory(
    folder: Path,
    export: DlrmExport,
    config: DlrmConfig,
    sizes: Sequence[int],
    instances: int,
    records: _Records,
) -> None:
    """Measures the memory of some instances that share one model's tables."""
    threads = max(1, len(os.sched_getaffinity(0)) // instances)
    serving = ServingSettings(dynamic_batching=False, instances=instances, threads=threads)
    with _start(folder, export, f"memory{instances}", serving) as server:
        server.wait_ready(600)
        found = measure_memory(server, config, sizes)
    pss = sum(instance.pss for instance in found) / MIB
    anonymous = max(instance.anonymous for instance in found) / MIB
    tables = sum(sizes) * config.model.embedding_dim * 4 / MIB
    print(
        f"{instances} instances, tables of {tables:,.0f} MiB: PSS {pss:,.0f} MiB together, "
        f"at most {anonymous:,.0f} MiB of its own in each",
        flush=True,
    )
    records.add(f"{instances} instances", {"pss": pss, "largest_anonymous": anonymous})


if __name__ == "__main__":
    sys.exit(main())
