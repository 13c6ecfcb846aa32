# SPDX-License-Identifier: Apache-2.0
"""The sectors of global memory that kernels ask for, counted by the emulator, and the fewest."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuda_ext import reference
from cuda_ext.emu import build
from cuda_ext.ops.update import call_update_rows
from cuda_ext.row_rules import ROW_RULES, RowOptimizer, RowStep

SAMPLES, FEATURES, DIM, NUM_ROWS = 9, 26, 128, 50
LOOKUPS = SAMPLES * FEATURES
WIDTH = reference.interaction_width(FEATURES + 1, DIM)

NO_MORE = 1.01
"""Sectors that the bytes of a warp's access fill, but for numbers that lie across two."""

READ_TWICE = 2.0
"""Half of the 32 bytes that a lane needs by one load, the rest by the next, from the L1 cache."""


def rows(*shape: int) -> torch.Tensor:
    return torch.randint(NUM_ROWS, shape, dtype=torch.int32)


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def gather(ops: Any, dtype: torch.dtype) -> None:
    table = torch.randn(NUM_ROWS, DIM).to(dtype)
    ops.embedding_gather(table, rows(SAMPLES, FEATURES), None, torch.bfloat16)


def sum_bags(ops: Any, dtype: torch.dtype) -> None:
    table, offsets = torch.randn(NUM_ROWS, DIM).to(dtype), torch.arange(0, LOOKUPS + 1, FEATURES)
    ops.embedding_bag(table, rows(LOOKUPS), offsets, None, None, torch.bfloat16)


def interact(ops: Any, dtype: torch.dtype) -> None:
    table = torch.randn(NUM_ROWS, DIM).to(dtype)
    bottom = halves(SAMPLES, DIM)
    ops.gather_dot_interaction(table, rows(SAMPLES, FEATURES), bottom, None, None, False, False)


def interact_backward(ops: Any, dtype: torch.dtype) -> None:
    table, gradient = torch.randn(NUM_ROWS, DIM).to(dtype), halves(SAMPLES, WIDTH)
    lookups, bottom = rows(SAMPLES, FEATURES), halves(SAMPLES, DIM)
    ops.gather_dot_interaction_backward(gradient, table, lookups, bottom, None, False, False)


def sort(ops: Any, dtype: torch.dtype) -> None:
    ops.sort_rows(rows(LOOKUPS), NUM_ROWS)


def number_joint_rows(ops: Any, dtype: torch.dtype) -> None:
    offsets = torch.arange(FEATURES + 1) * NUM_ROWS
    ops.joint_rows(rows(SAMPLES, FEATURES), offsets, None, False, torch.int32)


def update(rule: RowOptimizer) -> Callable[[Any, torch.dtype], None]:
    def run(ops: Any, dtype: torch.dtype) -> None:
        table = torch.randn(NUM_ROWS, DIM).to(dtype)
        state = ROW_RULES[rule].new_state(table)
        ordered = ops.sort_rows(rows(LOOKUPS), NUM_ROWS)
        build.take_traffic()
        step = RowStep(torch.tensor(0.5), torch.tensor(3.0))
        call_update_rows(ops, rule, table, state, ordered, halves(LOOKUPS, DIM), step)

    return run


HALF = torch.bfloat16
FULL = torch.float32
CASES = {
    "gather": (gather, FULL, NO_MORE),
    "gather of halves": (gather, HALF, NO_MORE),
    "bags": (sum_bags, FULL, NO_MORE),
    # The row numbers of four lookups lie across sectors.
    "bags of halves": (sum_bags, HALF, 1.1),
    "interaction": (interact, HALF, 1.02),
    "interaction of wider rows": (interact, FULL, READ_TWICE),
    "interaction, backward": (interact_backward, HALF, 1.02),
    "interaction of wider rows, backward": (interact_backward, FULL, READ_TWICE),
    "sort": (sort, FULL, NO_MORE),
    "joint rows": (number_joint_rows, FULL, NO_MORE),
    **{f"update by {rule}": (update(rule), FULL, NO_MORE) for rule in ROW_RULES},
}
"""Kernels at 128 columns, the type of the table, and the sectors read, times the fewest."""


@pytest.mark.parametrize("case", CASES)
def test_warps_ask_for_no_more_sectors_than_their_bytes_fill(emulated, case):
    torch.manual_seed(1)
    run, dtype, limit = CASES[case]
    build.take_traffic()
    run(emulated, dtype)
    launches = build.take_traffic()
    assert launches
    for launch in launches:
        assert 0 < launch.fewest_read <= launch.read <= limit * launch.fewest_read
        assert launch.written <= NO_MORE * launch.fewest_written


def test_bytes_of_a_gather_are_those_of_the_table_of_kernels(emulated):
    """docs/kernels.md has 772 bytes a lookup; for its row number a warp asks for a sector."""
    build.take_traffic()
    gather(emulated, FULL)
    (launch,) = build.take_traffic()
    assert 32 * (launch.fewest_read + launch.fewest_written) == (772 - 4 + 32) * LOOKUPS


def test_a_width_that_is_no_multiple_of_eight_costs_more_sectors(emulated):
    """What the count is for: rows of 129 numbers of 16 bits begin inside sectors."""
    build.take_traffic()
    emulated.embedding_gather(halves(NUM_ROWS, 129), rows(LOOKUPS), None, torch.bfloat16)
    (launch,) = build.take_traffic()
    assert launch.read > 1.2 * launch.fewest_read
