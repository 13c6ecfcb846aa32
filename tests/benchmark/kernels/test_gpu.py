# SPDX-License-Identifier: Apache-2.0
import json
import time

import pytest
import torch

from benchmark.kernels.ceilings import Ceilings, measure_cpu
from benchmark.kernels.gpu import measure_kernels
from benchmark.kernels.gpu_cases import Sizes, interaction_cases, lookup_cases, update_cases
from benchmark.kernels.stopwatch import seconds_per_call, time_interleaved

CPU = torch.device("cpu")
TINY = Sizes(
    tables=3,
    rows=40,
    dim=16,
    batch_sizes=(8, 16),
    copy_bytes=1 << 16,
    matmul_size=16,
    repeats=2,
    calls=1,
)
OPS = {
    *("dot_interaction forward", "dot_interaction backward", "embedding_gather", "joint_rows"),
    *("gather_dot_interaction forward", "gather_dot_interaction backward", "sort_rows"),
    *("update_rows sgd", "update_rows rowwise_adagrad", "update_rows adagrad", "update_rows adam"),
    *("sgd_rows_unsorted", "stack_ids"),
}


def test_every_op_is_measured(tmp_path):
    target = tmp_path / "results" / "kernels.json"
    measure_kernels(target, TINY, CPU, limit_s=120)
    result = json.loads(target.read_text())
    assert result["complete"]
    assert {one["op"] for one in result["ops"]} == OPS
    names = [(o["op"], o["distribution"], o["batch_size"], o["dtype"]) for o in result["ops"]]
    assert len(set(names)) == len(names)
    for one in result["ops"]:
        assert one["fastest_s"] <= one["seconds"] <= one["slowest_s"]
        assert one["bytes_per_s"] == pytest.approx(one["bytes"] / one["seconds"])
        assert one["share_of_floor"] == pytest.approx(one["floor_s"] / one["seconds"])
    assert result["ceilings"]["matmul_flops_per_s"].keys() == {
        *("float32", "tf32", "bfloat16", "float16")
    }


def test_what_was_measured_is_kept_where_time_runs_out(tmp_path):
    measure_kernels(tmp_path / "kernels.json", TINY, CPU, limit_s=0)
    result = json.loads((tmp_path / "kernels.json").read_text())
    assert result["ops"] == []
    assert not result["complete"]


def test_cases_compute_and_count_what_they_say():
    (forward, *_) = interaction_cases(TINY, CPU)
    assert forward.work().shape == (8, 24)
    assert forward.flops == 8 * 6 * 2 * 16  # six pairs of four vectors
    assert forward.num_bytes == 4 * 8 * (4 * 16 + 24)
    uniform = [case for case in lookup_cases(TINY, CPU) if case.distribution == "uniform"]
    gather = next(case for case in uniform if case.op == "embedding_gather")
    assert gather.work().shape == (8, 3, 16)
    lookups = 8 * 3
    written = lookups * (4 + 4 * 16)
    assert written < gather.num_bytes <= written + lookups * 4 * 16
    rows, positions = next(case for case in uniform if case.op == "sort_rows").work()
    assert rows.tolist() == sorted(rows.tolist())
    assert sorted(positions.tolist()) == list(range(lookups))
    bottom, anchor = next(c for c in uniform if c.op == "gather_dot_interaction backward").work()
    assert bottom.shape == (8, 16)
    assert anchor.shape == (8, 3, 16)


def test_atomic_updates_need_no_positions():
    sgd = [case for case in update_cases(TINY, CPU) if "sgd" in case.op]
    ordered, atomic = sgd[:2]
    assert ordered.num_bytes - atomic.num_bytes == 4 * 8 * 3
    assert ordered.work() is None


def test_floor_is_the_longer_of_traffic_and_operations():
    ceilings = Ceilings(copy_bytes_per_s=100.0, matmul_flops_per_s={"float32": 1000.0})
    assert ceilings.floor_s(200, 1000, "float32") == 2.0
    assert ceilings.floor_s(50, 1000, "float32") == 1.0


def test_cpu_limits_are_measured():
    found = measure_cpu(copy_bytes=1 << 20, matmul_size=64)
    assert found.copy_bytes_per_s > 1e6
    assert found.matmul_flops_per_s["float32"] > 1e6
    assert found.l2_read_bytes_per_s is None


def test_calls_are_warmed_up_taken_in_turns_and_averaged():
    calls = []
    candidates = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    times = time_interleaved(candidates, 2, calls=2, warmup=1)
    assert "".join(calls) == "ab" + "aabb" + "bbaa"
    assert {name: len(found) for name, found in times.items()} == {"a": 2, "b": 2}
    assert 0.02 <= seconds_per_call(lambda: time.sleep(0.02), calls=2) < 2
