# SPDX-License-Identifier: Apache-2.0
"""The kernels and bytes of a step, so that a new cast or copy is seen."""

import pytest

from tests.fake_cuda.dlrm_steps import build, record_step
from tests.fake_cuda.ranks import WORLD_SIZE, build_rank, rank_of, record_rank

ROWS = 65536

BUDGETS = {
    ("sgd", "float16"): (85, 9_067_163_992),
    ("sgd", "bfloat16"): (68, 9_061_091_382),
    ("sgd", "float32"): (66, 14_459_392_308),
    ("rowwise_adagrad", "bfloat16"): (74, 9_188_479_086),
    ("adam", "bfloat16"): (117, 12_626_590_038),
}
"""Optimizer and precision -> kernels and bytes of a step of NVIDIA's model on 65,536 samples."""

RANK_BUDGETS = {
    ("sgd", "bfloat16"): (109, 2_069_563_410),
    ("rowwise_adagrad", "float32"): (113, 3_669_144_972),
}
"""The same of the last of 8 ranks."""


def totals(recorder):
    """Adds up what was recorded; shown op by op where a test fails."""
    kernels = recorder.kernels()
    print(*kernels, sep="\n")
    return sum(k.kernels for k in kernels), sum(k.num_bytes for k in kernels)


@pytest.mark.parametrize(("optimizer", "precision"), BUDGETS)
def test_a_step_launches_the_kernels_of_its_budget(optimizer, precision):
    """Where a step became faster, write its figures into the table."""
    found = totals(record_step(build(optimizer), precision, ROWS))
    assert found == BUDGETS[optimizer, precision]


@pytest.mark.parametrize(("optimizer", "precision"), RANK_BUDGETS)
def test_a_step_of_a_rank_launches_the_kernels_of_its_budget(optimizer, precision, split_of):
    with rank_of(WORLD_SIZE - 1) as rank:
        devices = build_rank(rank, split_of(ROWS), ROWS, optimizer=optimizer)
        found = totals(record_rank(devices, precision))
    assert found == RANK_BUDGETS[optimizer, precision]
