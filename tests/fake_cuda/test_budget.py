# SPDX-License-Identifier: Apache-2.0
"""The kernels and bytes of a step: a golden file, so that a new cast or copy is seen."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from tests.fake_cuda.dlrm_steps import build, record_step

GOLDEN = Path(__file__).parents[1] / "golden" / "gpu_kernels.json"
REWRITE = "RECIPES_REWRITE_GOLDEN" in os.environ

CASES = {
    f"dlrm {optimizer} {precision} {rows}": (optimizer, precision, rows)
    for optimizer, precision, rows in (
        *(("sgd", precision, 32768) for precision in ("float16", "bfloat16", "float32")),
        *(("sgd", precision, 65536) for precision in ("float16", "bfloat16", "float32")),
        ("rowwise_adagrad", "bfloat16", 65536),
        ("adam", "bfloat16", 65536),
    )
}


def recorded(case: str) -> list[list[object]]:
    """Returns the lines of a case as it is now."""
    optimizer, precision, rows = CASES[case]
    recorder = record_step(build(optimizer), precision, rows)
    return [list(dataclasses.astuple(kernels)) for kernels in recorder.kernels()]


def budgets() -> dict[str, list[list[object]]]:
    """Returns the golden file: stage, op, kernels, bytes, bytes of table rows, operations."""
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


@pytest.mark.parametrize("case", CASES)
def test_a_step_launches_the_kernels_of_its_budget(case):
    """Where a step became faster: `make golden`."""
    kernels = recorded(case)
    if REWRITE:
        GOLDEN.write_text(as_text(budgets() | {case: kernels}))
    assert kernels == budgets()[case]


def as_text(of_cases: dict[str, list[list[object]]]) -> str:
    """A line for each op, so that a change is a readable difference."""
    cases = [
        f"{json.dumps(case)}: [\n  " + ",\n  ".join(map(json.dumps, kernels)) + "\n ]"
        for case, kernels in sorted(of_cases.items())
    ]
    return "{\n " + ",\n ".join(cases) + "\n}\n"
