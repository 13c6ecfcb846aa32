# SPDX-License-Identifier: Apache-2.0
"""The serving benchmark, on a small model: every figure it promises, and its memory check."""

import pytest

from benchmark.record import read_records
from benchmark.report import render_table
from benchmark.serving import perf_analyzer
from benchmark.serving import server as serving
from benchmark.serving.model import NAME, DeployedDlrm
from recsys.errors import UserError
from recsys.serve.client.connection import Endpoint
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.server import native_backend
from recsys.serve.signature import CATEGORICAL
from tests.tools import needs

pytestmark = pytest.mark.triton_server

SMALL = ["--tables=2", "--table_rows=3000", "--batch_sizes", "1", "8", "--seconds=0.1"]
SMALL += ["--p99_ms=500", "--arrival_clients=4", "--clients=python"]
NATIVE = native_backend.is_built()


def test_every_cell_is_measured_and_recorded(tmp_path, capsys, monkeypatch):
    arguments = [*SMALL, "--concurrency", "1", "2", "--instances", "2", f"--results={tmp_path}"]
    monkeypatch.setattr(serving, "memory_limit", lambda _table_bytes, _instances: 0)
    assert serving.main([*arguments, "--rounds=1"]) == 1
    assert "ABOVE 0 MiB" in capsys.readouterr().out
    load = read_records(tmp_path / "serving.jsonl")
    found = {(record.candidate, record.metric): record.value for record in load}
    for rows in (1, 8):
        for cell in (f"{c}, {b}" for c in ("1 client", "2 clients") for b in serving.candidates()):
            p50, p90, p99 = (found[f"batch {rows}, {cell}", p] for p in ("p50", "p90", "p99"))
            assert 0 < p50 <= p90 <= p99
            assert found[f"batch {rows}, {cell}", "throughput"] > 0
            assert found[f"batch {rows}, {cell}", "of in-process"] > 0
        assert found[f"batch {rows}, in process", "throughput"] > 0
        assert not NATIVE or found[f"batch {rows}, in process, native", "throughput"] > 0
        assert found[f"batch {rows}, arrivals, batching", "within the p99"] > 0
    one_client = read_records(tmp_path / "serving_one_client.jsonl")
    assert {record.candidate for record in one_client} == {
        *("batch 1, 1 client, batching", "batch 8, 1 client, batching")
    }
    memory = {record.candidate for record in read_records(tmp_path / "serving_memory.jsonl")}
    assert memory == {"2 instances", *(["2 instances, native"] if NATIVE else [])}
    for name in ("serving", "serving_one_client", "serving_memory"):
        table = render_table(read_records(tmp_path / f"{name}.jsonl"))
        assert (
            table.count("\n| ")
            == len({record.candidate for record in read_records(tmp_path / f"{name}.jsonl")}) + 1
        )


@needs("perf_analyzer")
def test_clients_of_perf_analyzer_count_what_the_server_counts(tmp_path):
    deployed = DeployedDlrm.make(tmp_path, (100, 200))
    plain = ServingSettings(threads=1, dynamic_batching=False)
    with deployed.serve(plain) as server, Endpoint(server.grpc_url, NAME) as endpoint:
        for rows, clients in ((1, 1), (8, 3)):
            requests = deployed.draw_requests(rows)
            loaded = perf_analyzer.measure_load(endpoint, requests, clients, 0.6)
            assert (loaded.batch_size, loaded.concurrency) == (rows, clients)
            assert 0 < loaded.latency.p50_s <= loaded.latency.p99_s
            # the server counts those of the warm-up too
            assert 0 < loaded.requests_per_s * 0.6 * 0.5 < loaded.server.requests
            assert loaded.server.rows == loaded.server.requests * rows
        wrong = [{**requests[0], CATEGORICAL: requests[0][CATEGORICAL] + 200}]
        with pytest.raises(UserError, match="is not in"):
            perf_analyzer.measure_load(endpoint, wrong, 1, 0.3)


def test_the_limit_counts_the_tables_once():
    assert serving.memory_limit(1000, 2) == 1.2 * (1000 + 2 * 300 * serving.MIB)
