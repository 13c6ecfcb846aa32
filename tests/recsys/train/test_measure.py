# SPDX-License-Identifier: Apache-2.0
"""Benchmark and profile of a run: steps, times, counts and files are the ones of the run."""

import gzip
import json
import mmap
import time

import pytest
import torch

from bert4rec.scripts import main as bert4rec
from recsys.train.measure.benchmark import StepBenchmark
from recsys.train.measure.profiler import StepProfiler
from recsys.train.memory import peak_memory, reset_peak_memory
from recsys.train.optimizers.precision import Precision
from recsys.train.processes import ALONE
from recsys.train.recipe import Machine
from tests import harness
from tests.bert4rec.conftest import SMALL_MODEL
from tests.harness import assert_tells

CPU = torch.device("cpu")
RANDOM = ("--dataset_name=random", "--random_user_count=40", "--random_size=400", "--max_steps=30")


@pytest.fixture
def program(tmp_path):
    return harness.Program(bert4rec, tmp_path, SMALL_MODEL)


def values_of(records, prefix):
    """Returns the one record of a benchmark or a profile, and the step at which it came."""
    (record,) = [r for r in records if any(key.startswith(prefix) for key in r["data"])
                 and r["step"] != "PARAMETER"]  # fmt: skip
    return record["data"], record["step"][1]


def sleeping_benchmark(lines, warmup_steps, num_steps):
    machine = Machine(CPU, Precision(device_type="cpu"), ALONE, lines.append)

    def count(batch):
        return {"samples": len(batch), "tokens": 6 * len(batch), "padded_tokens": 8 * len(batch)}

    return StepBenchmark(warmup_steps, num_steps, count, machine)


def test_times_and_rates_are_those_of_the_measured_steps():
    lines = []
    benchmark = sleeping_benchmark(lines, warmup_steps=2, num_steps=10)
    logged = []
    for step in range(15):
        began = time.perf_counter()
        time.sleep(0.005)  # the wait for a batch
        waited = time.perf_counter() - began
        time.sleep(0.2 if step in (1, 11) else 0.02 if step == 5 else 0.005)
        logged.append(benchmark(range(4), began, waited))
    assert [values is not None for values in logged] == [step == 11 for step in range(15)]
    assert benchmark.finish() is None
    values = logged[11]
    assert values["benchmark_steps"] == 10
    assert values["benchmark_step_time_p50"] >= 0.010
    assert values["benchmark_step_time_p50"] < values["benchmark_step_time_mean"]
    seconds = values["benchmark_step_time_mean"] * 10
    assert seconds >= 10 * 0.005 + 8 * 0.005 + 0.02 + 0.2
    assert values["benchmark_samples_per_s"] == pytest.approx(40 / seconds)
    assert values["benchmark_tokens_per_s"] == pytest.approx(240 / seconds)
    assert values["benchmark_padding_share"] == pytest.approx(0.25)
    assert 0.05 / seconds <= values["benchmark_data_wait_share"] < 1
    assert "benchmark_padded_tokens_per_s" not in values
    assert "10 steps after 2" in lines[0]


def test_a_run_that_ends_early_reports_the_steps_that_it_had():
    lines = []
    benchmark = sleeping_benchmark(lines, warmup_steps=0, num_steps=10)
    for _ in range(3):
        assert benchmark(range(4), time.perf_counter(), 0.0) is None
    assert benchmark.finish()["benchmark_steps"] == 3
    benchmark = sleeping_benchmark(lines, warmup_steps=5, num_steps=10)
    benchmark(range(4), time.perf_counter(), 0.0)
    assert benchmark.finish() is None
    assert_tells(lines[-1], 1)


def touched_pages(num_bytes):
    """Returns pages new to the process: those of `malloc` may have been resident before."""
    pages = mmap.mmap(-1, num_bytes)
    pages[:: mmap.PAGESIZE] = bytes(num_bytes // mmap.PAGESIZE)
    return pages


def test_peak_memory_is_that_since_it_was_reset():
    touched_pages(1 << 27).close()
    reset_peak_memory(CPU)
    before = peak_memory(CPU)
    held = touched_pages(1 << 26)
    assert 0.9 < (peak_memory(CPU) - before) / len(held) < 1.5
    held.close()


def test_a_run_measures_then_profiles_and_goes_on(program, tmp_path, capsys):
    records = program(
        *RANDOM,
        *("--benchmark_warmup_steps=4", "--run_benchmark", "--benchmark_steps=6"),
        *("--run_profiler", "--objective=hybrid", "--accumulation_steps=2"),
        f"--export_root={tmp_path / 'run'}",
    )
    output, folder = capsys.readouterr().out, tmp_path / "run" / "profile"
    values, step = values_of(records, "benchmark_samples_per_s")
    assert (step, values["benchmark_steps"]) == (10, 6)
    assert 0 < values["benchmark_targets_per_s"] < values["benchmark_tokens_per_s"]
    assert 0 < values["benchmark_padding_share"] < 1
    percentiles = [values[f"benchmark_step_time_p{q}"] for q in (10, 50, 90)]
    assert 0 < percentiles[0] <= percentiles[1] <= percentiles[2]
    assert 1 << 24 < values["benchmark_peak_memory_bytes"] < 1 << 36
    assert "Benchmark of 6 steps after 4: " in output

    profile, step = values_of(records, "profile_steps")
    assert (step, profile["profile_steps"]) == (14, 3)
    assert str(folder / "trace.json.gz") in output
    with gzip.open(folder / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    assert "aten::mm" in names
    assert "aten::mm" in (folder / "operators.txt").read_text()
    assert {path.name for path in folder.iterdir()} == {"trace.json.gz", "operators.txt"}
    assert records[-1]["data"]["test_full_ndcg@10"] >= 0

    program(*RANDOM, "--objective=hybrid", "--accumulation_steps=2",
            f"--export_root={tmp_path / 'plain'}")  # fmt: skip
    name = "step_000000030/model.safetensors"
    assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_the_time_that_the_profiler_takes_is_told_from_that_of_steps(tmp_path):
    """Starting it takes seconds, which counted as training: 1,700 samples/s for 24,000."""
    machine = Machine(CPU, Precision(device_type="cpu"), ALONE, lambda _line: None)
    profiler = StepProfiler(tmp_path, 2, machine)
    returned = [profiler([], 0.0, 0.0) for _ in range(8)]
    assert [values is None for values in returned] == [True, *[False] * 5, True, True]
    assert [values["profile_steps"] for values in returned if values] == [3]


def test_without_checkpoints_a_profile_is_beside_the_log(program, tmp_path, capsys):
    program(*RANDOM, "--benchmark_warmup_steps=0", "--run_profiler", "--max_steps=2")
    assert (tmp_path / "profile" / "operators.txt").is_file()
    program(*RANDOM, "--run_profiler", "--max_steps=2")
    (tmp_path / "file").write_text("")
    program(*RANDOM, "--run_profiler", f"--export_root={tmp_path / 'file'}", status=2)


GELU_OF_MANY_SHAPES = """
import ctypes
from recsys.train.memory import keep_few_primitives
import torch

class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
keep_few_primitives()
for size in range(1000, 1400):
    torch.nn.functional.gelu(torch.ones(size, 64))
    if size == 1100:
        before = libc.mallinfo2().field7  # bytes in use
print(libc.mallinfo2().field7 - before)
"""


def test_code_of_shapes_that_never_return_is_not_kept():
    done = harness.python("-c", GELU_OF_MANY_SHAPES)
    assert int(done.stdout) < 1 << 20  # 20 MiB where oneDNN keeps them
