# SPDX-License-Identifier: Apache-2.0
"""The kernels and bytes of a step: a golden file, so that a new cast or copy is seen."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from tests.fake_cuda.dlrm_steps import build, record_step
from tests.fake_cuda.ranks import WORLD_SIZE, build_rank, rank_of, record_rank
from tests.fake_cuda.recorder import Recorder

GOLDEN = Path(__file__).parents[1] / "golden" / "gpu_kernels.json"
GOLDEN_OF_RANKS = GOLDEN.with_name("rank_kernels.json")
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


RANK_ROWS = 65536
RANK_CASES = {
    f"dlrm {optimizer} {precision} {RANK_ROWS}, rank {rank} of {WORLD_SIZE}": (
        *(optimizer, precision, rank),
    )
    for optimizer, precision in (
        *(("sgd", precision) for precision in ("float16", "bfloat16", "float32")),
        ("rowwise_adagrad", "bfloat16"),
    )
    for rank in (0, WORLD_SIZE - 1)
}


def lines(recorder: Recorder) -> list[list[object]]:
    """Returns what was recorded as the golden files have it."""
    return [list(dataclasses.astuple(kernels)) for kernels in recorder.kernels()]


def recorded(case: str) -> list[list[object]]:
    """Returns the lines of a case as it is now."""
    optimizer, precision, rows = CASES[case]
    return lines(record_step(build(optimizer), precision, rows))


def recorded_of_rank(case: str, dataset: Path) -> list[list[object]]:
    """Returns the lines of a rank's case as it is now."""
    optimizer, precision, number = RANK_CASES[case]
    with rank_of(number) as rank:
        devices = build_rank(rank, dataset, RANK_ROWS, optimizer=optimizer)
        return lines(record_rank(devices, precision))


def budgets(golden: Path = GOLDEN) -> dict[str, list[list[object]]]:
    """Returns a golden file: stage, op, kernels, bytes, bytes of table rows, operations."""
    return json.loads(golden.read_text()) if golden.exists() else {}


def check(golden: Path, case: str, kernels: list[list[object]]) -> None:
    """Compares a case with its budget, or writes it there."""
    if REWRITE:
        golden.write_text(as_text(budgets(golden) | {case: kernels}))
    assert kernels == budgets(golden)[case]


@pytest.mark.parametrize("case", CASES)
def test_a_step_launches_the_kernels_of_its_budget(case):
    """Where a step became faster: `make golden`."""
    check(GOLDEN, case, recorded(case))


@pytest.mark.parametrize("case", RANK_CASES)
def test_a_step_of_a_rank_launches_the_kernels_of_its_budget(case, split_of):
    check(GOLDEN_OF_RANKS, case, recorded_of_rank(case, split_of(RANK_ROWS)))


def as_text(of_cases: dict[str, list[list[object]]]) -> str:
    """A line for each op, so that a change is a readable difference."""
    cases = [
        f"{json.dumps(case)}: [\n  " + ",\n  ".join(map(json.dumps, kernels)) + "\n ]"
        for case, kernels in sorted(of_cases.items())
    ]
    return "{\n " + ",\n ".join(cases) + "\n}\n"
