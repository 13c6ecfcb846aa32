# SPDX-License-Identifier: Apache-2.0
"""The serving benchmark, on a small model: every figure it promises, and its memory check."""

import pytest

from benchmark import run
from benchmark.cases import serving
from benchmark.peers import perf_analyzer
from benchmark.peers.served_dlrm import NAME, DeployedDlrm
from benchmark.record import read_records
from benchmark.report import render_table
from recsys.serve.client.connection import Endpoint
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.server import native_backend
from recsys.serve.signature import CATEGORICAL
from tests.harness import assert_tells, refusal
from tests.tools import needs

pytestmark = pytest.mark.triton_server

SMALL = ["--tables=2", "--table_rows=3000", "--batch_sizes=1,8", "--seconds=0.1", "--repeats=1"]
SMALL += ["--p99_ms=500", "--arrival_clients=4", "--clients=python"]
NATIVE = native_backend.is_built()


@pytest.mark.release
def test_every_cell_is_measured_and_recorded(tmp_path, capsys, monkeypatch):
    def measured(part, *flags, status=0):
        path = tmp_path / f"{part}.jsonl"
        arguments = ["serving", f"--measured={part}", *SMALL, *flags, f"--records={path}"]
        assert run.main(["", *arguments]) == status
        records = read_records(path)
        rows = {record.candidate for record in records}
        assert render_table(records).count("\n| ") == len(rows) + 1
        return {(record.candidate, record.metric): record.value for record in records}, rows

    values, _ = measured("load", "--concurrency=1,2")
    for rows in (1, 8):
        for cell in (f"{c}, {b}" for c in ("1 client", "2 clients") for b in serving.compared()):
            p50, p90, p99 = (values[f"batch {rows}, {cell}", p] for p in ("p50", "p90", "p99"))
            assert 0 < p50 <= p90 <= p99
            assert values[f"batch {rows}, {cell}", "throughput"] > 0
            assert values[f"batch {rows}, {cell}", "throughput over in-process"] > 0
        assert values[f"batch {rows}, in process", "throughput"] > 0
        assert not NATIVE or values[f"batch {rows}, in process, native", "throughput"] > 0
        assert values[f"batch {rows}, arrivals, batching", "within the p99"] > 0
    _, rows = measured("one_client")
    assert rows == {"batch 1, 1 client, batching", "batch 8, 1 client, batching"}
    monkeypatch.setattr(serving, "memory_limit", lambda _table_bytes, _instances: 0)
    _, rows = measured("memory", "--instances=2", status=1)
    assert rows == {"2 instances", *(["2 instances, native"] if NATIVE else [])}
    assert_tells(capsys.readouterr().err, *rows)


@needs("perf_analyzer")
def test_clients_of_perf_analyzer_count_what_the_server_counts(tmp_path):
    deployed = DeployedDlrm.make(tmp_path, (100, 200))
    plain = ServingSettings(threads=1, dynamic_batching=False)
    with deployed.serve(plain) as server, Endpoint(server.grpc_url, NAME, "", "grpc") as endpoint:
        for rows, clients in ((1, 1), (8, 3)):
            requests = deployed.draw_requests(rows)
            loaded = perf_analyzer.measure_load(endpoint, requests, clients, 0.6)
            assert (loaded.batch_size, loaded.concurrency) == (rows, clients)
            assert 0 < loaded.latency.p50_s <= loaded.latency.p99_s
            # the server counts those of the warm-up too
            assert 0 < loaded.requests_per_s * 0.6 * 0.5 < loaded.server.requests
            assert loaded.server.rows == loaded.server.requests * rows
        wrong = [{**requests[0], CATEGORICAL: requests[0][CATEGORICAL] + 200}]
        with refusal("'categorical'"):
            perf_analyzer.measure_load(endpoint, wrong, 1, 0.3)
