# SPDX-License-Identifier: Apache-2.0
"""Measures latency and throughput of DLRM inference by batch size.

    python -m benchmark.dlrm.inference

runs `dlrm.scripts.main --mode inference_benchmark` several times on synthetic Zipf ids, for a
small model (facebookresearch's Kaggle sizes) and a big one (NVIDIA's defaults), and records the
median of the runs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.dlrm.program import run_dlrm
from benchmark.record import RESULTS, make_record, write_records

MODELS = {
    "small": (
        "--embedding_dim=16",
        "--bottom_mlp_sizes=512,256,64,16",
        "--top_mlp_sizes=512,256,1",
    ),
    "big": (),
}
BATCH_SIZES = (1, 64, 4096)
STATISTICS = ("mean", "p50", "p90", "p99")


def measure(model: str, steps: int) -> dict[str, float]:
    """Runs the inference benchmark once; returns its log record."""
    return run_dlrm(
        "--mode=inference_benchmark",
        "--dataset_type=synthetic_gpu",
        "--synthetic_distribution=zipf",
        "--synthetic_dataset_num_entries=1048576",
        f"--inference_benchmark_batch_sizes={','.join(map(str, BATCH_SIZES))}",
        f"--inference_benchmark_steps={steps}",
        *MODELS[model],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both models in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="measured batches of each size")
    parser.add_argument("--results", type=Path, default=RESULTS / "inference.jsonl")
    options = parser.parse_args(arguments)
    runs: dict[str, list[dict[str, float]]] = {model: [] for model in MODELS}
    for _ in range(options.repeats):
        for model in MODELS:
            runs[model].append(measure(model, options.steps))
    config = {"tables": "26 x 100,000 rows", "ids": "zipf", "steps": options.steps}
    records = []
    for model, results in runs.items():
        for size in BATCH_SIZES:
            candidate = f"{model}, batch {size}"
            for statistic in STATISTICS:
                key = f"{statistic}_inference_latency_batch_{size}"
                records.append(
                    make_record(
                        "inference",
                        candidate,
                        statistic,
                        [run[key] * 1e3 for run in results],
                        unit="ms",
                        direction="lower",
                        config=config,
                    )
                )
            key = f"mean_inference_throughput_batch_{size}"
            records.append(
                make_record(
                    "inference",
                    candidate,
                    "throughput",
                    [run[key] for run in results],
                    unit="samples/s",
                    direction="higher",
                    config=config,
                )
            )
    write_records(options.results, records)
    for record in records:
        print(
            f"{record.candidate:18s} {record.metric:10s} {record.value or 0:14,.3f} {record.unit}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
