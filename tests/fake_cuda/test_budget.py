# SPDX-License-Identifier: Apache-2.0
"""The kernels and bytes of a step, so that a new cast or copy is seen."""

import pytest

from tests.fake_cuda.dlrm_steps import build, record_step
from tests.fake_cuda.ranks import WORLD_SIZE, build_rank, rank_of, record_rank

ROWS = 65536

BUDGETS = {
    ("sgd", "float16"): (77, 7_815_190_872),
    ("sgd", "bfloat16"): (60, 7_809_118_262),
    ("sgd", "float32"): (56, 11_898_769_716),
    ("rowwise_adagrad", "bfloat16"): (66, 7_936_505_966),
    ("adam", "bfloat16"): (109, 11_374_616_918),
}
"""Optimizer and precision -> kernels and bytes of a step of NVIDIA's model on 65,536 samples."""

RANK_BUDGETS = {
    ("sgd", "bfloat16"): (101, 1_913_090_066),
    ("rowwise_adagrad", "float32"): (103, 3_349_067_148),
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
