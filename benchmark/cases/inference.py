# SPDX-License-Identifier: Apache-2.0
"""Latency and throughput of DLRM inference, by model, precision and batch size.

`dlrm.scripts.main --mode inference_benchmark` on synthetic Zipf ids, for a small model
(facebookresearch's Kaggle sizes) and a big one (NVIDIA's defaults).
"""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from benchmark.case import Case, Group
from benchmark.programs import DLRM, Figure, training_group
from recsys.settings import joined, setting

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Inference(Case):
    """Inference of both models in every precision."""

    repeats: ClassVar[int] = 3

    steps: int = setting(200, "Measured batches of each size")
    rows: int = setting(1_048_576, "Generated rows")

    def config(self) -> dict[str, Any]:
        """Returns tables, ids and steps."""
        return {"tables": "26 x 100,000 rows", "ids": "zipf", "steps": self.steps}

    def groups(self, folder: Path) -> Iterator[Group]:  # noqa: ARG002
        """Yields a candidate for each model and precision."""
        flags = (
            *("--mode=inference_benchmark", "--dataset_type=synthetic_gpu"),
            *("--synthetic_distribution=zipf", f"--synthetic_dataset_num_entries={self.rows}"),
            f"--inference_benchmark_batch_sizes={joined(BATCH_SIZES)}",
            f"--inference_benchmark_steps={self.steps}",
        )
        pairs = itertools.product(MODELS, PRECISIONS)
        rows = {f"{m} {p}": (*flags, *MODELS[m], *PRECISIONS[p]) for m, p in pairs}
        figures = {}
        for size in BATCH_SIZES:
            row = f", batch {size}"
            for statistic in ("mean", "p50", "p90", "p99"):
                latency = f"{statistic}_inference_latency_batch_{size}"
                figures[latency] = Figure(statistic, "ms", 1e3, row)
            throughput = f"mean_inference_throughput_batch_{size}"
            figures[throughput] = Figure("throughput", "samples/s", row=row)
        yield training_group(DLRM, rows, figures)


CASE = Inference
