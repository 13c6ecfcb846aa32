# SPDX-License-Identifier: Apache-2.0
"""Models the time of a training step on a GPU.

    python -m benchmark.gpu.step_model --device H200 --case "dlrm sgd float16 65536"

The kernels are counted, not measured: tests follow the real step with fake tensors and keep the
counts in tests/golden/gpu_kernels.json. A kernel takes its launch and the longer of two: its bytes
through memory (rows that several lookups share through the L2 cache), and its operations. Half of a
stage on a side stream hides under the stages that follow it, and all of the copies from the host,
which have engines of their own. Prints a Markdown table by stage. What is least certain is printed
below it.
"""

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

COUNTS = Path(__file__).parents[2] / "tests" / "golden" / "gpu_kernels.json"

DISTINCT = {"zipf": {32768: 0.145, 65536: 0.121}, "uniform": {32768: 0.41, 65536: 0.36}}
"""Distinct share of the rows that a batch looks up, of the tables with frequency limit 15."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """Highest rates of a device: published peaks times what large kernels reach.

    Attributes:
        memory: bytes a second.
        cache: bytes a second from the L2 cache.
        products: operations a second of matrix products, by precision.
        sorted_keys: 32-bit keys with positions a second that a radix sort reaches.
        launch: seconds between two kernels of a CUDA graph.
    """

    memory: float
    cache: float
    products: dict[str, float]
    sorted_keys: float
    launch: float = 1.3e-6


DEVICES = {
    "H200": Ceilings(
        memory=0.88 * 4.3e12,
        cache=5e12,
        products={"float16": 560e12, "bfloat16": 560e12, "tf32": 272e12, "float32": 50e12},
        sorted_keys=17e9,
    ),
    "H100": Ceilings(
        memory=0.88 * 3.0e12,
        cache=5e12,
        products={"float16": 530e12, "bfloat16": 530e12, "tf32": 260e12, "float32": 50e12},
        sorted_keys=15e9,
    ),
}

SIDE_STREAM = " (side stream)"
"""Ends the name of a stage that runs beside others."""

COPIES = f"input{SIDE_STREAM}"

HIDDEN = 0.5
"""Share of a side stream's time that others do not get longer by: a guess."""

_SORTED_BYTES_PER_KEY = 12
"""Of a row number that is read, and written with its position."""

UNCERTAIN = (
    "share of the peak that matrix products of these sizes reach (0.55)",
    "rate of the L2 cache for gathered rows",
    "rate of the sort for so few keys",
    "share of a side stream's time that hides under other kernels (0.5)",
)


@dataclasses.dataclass(frozen=True, slots=True)
class StageTime:
    """Modelled cost of a stage.

    Attributes:
        kernels: launches.
        num_bytes: through memory.
        seconds: modelled.
    """

    kernels: int
    num_bytes: float
    seconds: float


def model(
    counts: Sequence[tuple[str, str, int, int, int, int]],
    ceilings: Ceilings,
    precision: str,
    distinct: float,
) -> dict[str, StageTime]:
    """Models each stage of a step.

    Args:
        counts: lines of a case: stage, op, kernels, bytes, bytes of rows, operations.
        ceilings: of the device.
        precision: of the matrix products.
        distinct: share of the looked-up rows that differ.
    """
    stages: dict[str, StageTime] = {}
    for stage, op, kernels, plain, of_rows, operations in counts:
        through_memory = plain + distinct * of_rows
        seconds = max(
            through_memory / ceilings.memory,
            (plain + of_rows) / ceilings.cache if "update" not in op else 0.0,
            operations / ceilings.products[precision],
        )
        if op.endswith("sort_rows"):
            seconds = max(seconds, plain / _SORTED_BYTES_PER_KEY / ceilings.sorted_keys)
        before = stages.get(stage, StageTime(0, 0.0, 0.0))
        stages[stage] = StageTime(
            before.kernels + kernels,
            before.num_bytes + through_memory,
            before.seconds + kernels * ceilings.launch + seconds,
        )
    return stages


def total_of(stages: dict[str, StageTime]) -> StageTime:
    """Adds the stages, less what hides under others."""
    stages = {name: cost for name, cost in stages.items() if name != COPIES}
    seconds = following = 0.0
    for name, cost in reversed(stages.items()):
        seconds += cost.seconds
        if name.endswith(SIDE_STREAM):
            seconds -= HIDDEN * min(cost.seconds, following)
        else:
            following += cost.seconds
    kernels = sum(cost.kernels for cost in stages.values())
    return StageTime(kernels, sum(cost.num_bytes for cost in stages.values()), seconds)


def markdown(stages: dict[str, StageTime], rows: int) -> str:
    """Formats the stages, their sum and the rate."""
    total = total_of(stages)
    lines = ["| stage | kernels | MB | us |", "| --- | ---: | ---: | ---: |"]
    for name, cost in {**stages, "all": total}.items():
        lines.append(
            f"| {name} | {cost.kernels} | {cost.num_bytes / 1e6:,.1f} | {cost.seconds * 1e6:,.0f} |"
        )
    return "\n".join([*lines, "", f"{rows / total.seconds / 1e6:.1f} M samples/s"])


def rates() -> dict[str, dict[str, float]]:
    """Returns the modelled samples a second of every counted step."""
    modelled: dict[str, dict[str, float]] = {}
    for (device, ceilings), (ids, shares) in itertools.product(DEVICES.items(), DISTINCT.items()):
        of_device = modelled.setdefault(f"{device}, {ids}", {})
        for case, counts in json.loads(COUNTS.read_text()).items():
            *_, precision, rows = case.split()
            stages = model(counts, ceilings, precision, shares[int(rows)])
            of_device[case] = int(rows) / total_of(stages).seconds
    return modelled


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the model of a case."""
    cases = json.loads(COUNTS.read_text())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=tuple(DEVICES), default="H200")
    parser.add_argument("--case", choices=tuple(cases), default="dlrm sgd float16 65536")
    parser.add_argument("--tf32", action="store_true", help="multiply float32 as TF32")
    parser.add_argument("--ids", choices=tuple(DISTINCT), default="zipf")
    options = parser.parse_args(arguments)
    *_, precision, rows = options.case.split()
    precision = "tf32" if options.tf32 and precision == "float32" else precision
    distinct = DISTINCT[options.ids][int(rows)]
    stages = model(cases[options.case], DEVICES[options.device], precision, distinct)
    print(f"{options.case}, {options.ids} ids, {options.device}: modelled, not measured\n")
    print(markdown(stages, int(rows)))
    print("\nLeast certain: " + "; ".join(UNCERTAIN) + ".")
    return 0


if __name__ == "__main__":
    sys.exit(main())
