# SPDX-License-Identifier: Apache-2.0
"""Tests and measures everything that needs a CUDA device.

    python -m benchmark.gpu

runs the tests marked `gpu`, then trains DLRM (NVIDIA's small model, tables capped at a million
rows, Zipf ids made on the device) with and without mixed precision and CUDA graphs, measures
inference, and records samples per second in results/gpu.jsonl.

    python -m benchmark.gpu --kernels

measures every op of the extension beside the device's limits instead, in less than eight minutes,
and writes results/gpu_kernels.json.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.dlrm.program import run_dlrm
from benchmark.kernels.gpu import measure_kernels
from benchmark.kernels.gpu_cases import Sizes
from benchmark.record import RESULTS, Record, make_record, write_records

# Criteo Terabyte at frequency limit 15, capped at a million rows so that it fits any GPU.
TABLE_SIZES = (
    1000000, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 1000000, 582469, 245828, 11, 2209, 10667,
    104, 4, 968, 15, 1000000, 1000000, 1000000, 302516, 12022, 97, 35,
)  # fmt: skip
KERNELS_LIMIT_S = 420.0
VARIANTS: dict[str, tuple[str, ...]] = {
    "float32": (),
    "float32, graph": ("--cuda_graphs",),
    "bfloat16": ("--amp", "--amp_dtype=bfloat16"),
    "bfloat16, graph": ("--amp", "--amp_dtype=bfloat16", "--cuda_graphs"),
    "float16": ("--amp",),
    "float16, graph": ("--amp", "--cuda_graphs"),
}


def run_on_gpu(*arguments: str) -> dict[str, Any]:
    """Runs DLRM on generated ids; returns its last record."""
    return run_dlrm(
        "--dataset_type=synthetic_gpu",
        "--synthetic_distribution=zipf",
        f"--synthetic_dataset_table_sizes={','.join(map(str, TABLE_SIZES))}",
        "--base_device=cuda",
        *arguments,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the GPU tests, then measures; returns the tests' exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS / "gpu.jsonl")
    parser.add_argument("--kernels", action="store_true", help="measure the ops, one by one")
    parser.add_argument("--kernel_results", type=Path, default=RESULTS / "gpu_kernels.json")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("no CUDA device here")
    if options.kernels:
        measure_kernels(options.kernel_results, Sizes(), torch.device("cuda"), KERNELS_LIMIT_S)
        return 0
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"], check=False
    )
    config = {"batch_size": 32768, "steps": options.steps, "tables": "FL15, capped at 1 M rows"}
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(options.repeats):
        for name, flags in VARIANTS.items():
            final = run_on_gpu(
                f"--max_steps={options.steps}",
                f"--benchmark_warmup_steps={options.steps // 3}",
                "--test_after=10",
                "--lr=1",
                *flags,
            )
            rates[name].append(final["average_train_throughput"])
    records: list[Record] = [
        make_record(
            "gpu", name, "training", samples, unit="samples/s", direction="higher", config=config
        )
        for name, samples in rates.items()
    ]
    final = run_on_gpu(
        "--mode=inference_benchmark",
        "--inference_benchmark_batch_sizes=1,64,4096,32768",
        "--synthetic_dataset_num_entries=33554432",
    )
    records += [
        make_record(
            "gpu_inference",
            f"float32, batch {size}",
            "p50",
            [final[f"p50_inference_latency_batch_{size}"] * 1e3],
            unit="ms",
            direction="lower",
            config=config,
        )
        for size in (1, 64, 4096, 32768)
    ]
    write_records(options.results, records)
    for record in records:
        print(
            f"{record.candidate:20s} {record.metric:10s} {record.value or 0:16,.3f} {record.unit}"
        )
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
