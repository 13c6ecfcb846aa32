# SPDX-License-Identifier: Apache-2.0
"""Settings of benchmark, profile and curves; without torch, for flags."""

import dataclasses

from recsys.settings import Not, require_positive, setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasureConfig:
    """Settings of benchmark, profile and curves."""

    run_benchmark: bool = setting(
        False,
        "Measure the first steps after a warm-up of --benchmark_warmup_steps (10 by default): "
        "throughput, step time, peak memory. Each measured step waits for the device; then "
        "training continues",
        resumable=True,
        used_with={"mode": ("train",)},
    )
    benchmark_steps: int = setting(
        100, "Steps of --run_benchmark", resumable=True, used_with={"run_benchmark": Not(False)}
    )
    run_profiler: bool = setting(
        False,
        "Write a Chrome trace and a table of operators for three steps after the warm-up and the "
        "benchmark, into the folder profile of the checkpoints, or next to the log without them",
        resumable=True,
        used_with={"mode": ("train",)},
    )

    report: str | None = setting(
        None,
        "HTML file to write with the curves, times, metrics and settings of the run, such as "
        "FILE.html; needs matplotlib",
        resumable=True,
        used_with={"mode": ("train", "test")},
    )
    tensorboard: str | None = setting(
        None,
        "Folder for TensorBoard events: the curves of a training and its evaluations; needs "
        "tensorboard",
        resumable=True,
        used_with={"mode": ("train",)},
    )

    def __post_init__(self) -> None:
        """Refuses a benchmark without steps."""
        require_positive(self, "benchmark_steps")
