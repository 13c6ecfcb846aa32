# SPDX-License-Identifier: Apache-2.0
"""The serving benchmark, on a small model: every figure it promises, and its memory check."""

import pytest

from benchmark.record import read_records
from benchmark.report import render_table
from benchmark.serving import server as serving
from recsys.serve.server import native_backend

pytestmark = pytest.mark.triton_server

SMALL = ["--tables=2", "--table_rows=3000", "--batch_sizes", "1", "8", "--seconds=0.1"]
SMALL += ["--p99_ms=500", "--arrival_clients=4"]
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


def test_the_limit_counts_the_tables_once():
    assert serving.memory_limit(1000, 2) == 1.2 * (1000 + 2 * 300 * serving.MIB)
