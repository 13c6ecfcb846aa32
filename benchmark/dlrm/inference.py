# SPDX-License-Identifier: Apache-2.0
"""Measures latency and throughput of DLRM inference by batch size.

    python -m benchmark.dlrm.inference

runs `dlrm.scripts.main --mode inference_benchmark` several times on synthetic Zipf ids, for a
small model (facebookresearch's Kaggle sizes) and a big one (NVIDIA's defaults), in float32, in
bfloat16 and in 8 bits, in turns, and records the medians of the runs.
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.dlrm.program import run_dlrm
from benchmark.processes import run_interleaved
from benchmark.record import RESULTS, make_record, write_records

MODELS = {
    "small": (
        "--embedding_dim=16",
        "--bottom_mlp_sizes=512,256,64,16",
        "--top_mlp_sizes=512,256,1",
    ),
    "big": (),
}
PRECISIONS = {
    "float32": (),
    "bfloat16": ("--amp", "--amp_dtype=bfloat16"),
    "int8": ("--quantize=int8",),
}
BATCH_SIZES = (1, 64, 4096)
STATISTICS = ("mean", "p50", "p90", "p99")


def measure(model: str, precision: str, steps: int) -> dict[str, float]:
    """Runs the inference benchmark once; returns its log record."""
    return run_dlrm(
        "--mode=inference_benchmark",
        "--dataset_type=synthetic_gpu",
        "--synthetic_distribution=zipf",
        "--synthetic_dataset_num_entries=1048576",
        f"--inference_benchmark_batch_sizes={','.join(map(str, BATCH_SIZES))}",
        f"--inference_benchmark_steps={steps}",
        *MODELS[model],
        *PRECISIONS[precision],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both models in every precision, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="measured batches of each size")
    parser.add_argument("--results", type=Path, default=RESULTS / "inference.jsonl")
    options = parser.parse_args(arguments)
    candidates = {f"{m} {p}": (m, p) for m in MODELS for p in PRECISIONS}
    calls = {
        name: functools.partial(measure, model, precision, options.steps)
        for name, (model, precision) in candidates.items()
    }
    runs = run_interleaved(calls, options.repeats)
    config = {"tables": "26 x 100,000 rows", "ids": "zipf", "steps": options.steps}
    records = []
    for name, (model, _) in candidates.items():
        for size in BATCH_SIZES:
            make = functools.partial(
                make_record, "inference", f"{name}, batch {size}", config=config
            )
            for statistic in STATISTICS:
                key = f"{statistic}_inference_latency_batch_{size}"
                times = [run[key] * 1e3 for run in runs[name]]
                records.append(make(statistic, times, unit="ms", direction="lower"))
            key = f"mean_inference_throughput_batch_{size}"
            rates = [run[key] for run in runs[name]]
            plain = [run[key] for run in runs[f"{model} float32"]]
            ratios = [rate / base for rate, base in zip(rates, plain, strict=True)]
            records.append(make("throughput", rates, unit="samples/s", direction="higher"))
            records.append(make("over float32", ratios, unit="x", direction="higher"))
    write_records(options.results, records)
    for record in records:
        print(
            f"{record.candidate:26s} {record.metric:12s} {record.value or 0:14,.3f} {record.unit}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
