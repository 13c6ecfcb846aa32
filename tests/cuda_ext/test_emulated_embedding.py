# SPDX-License-Identifier: Apache-2.0
"""What only the CUDA kernels of the embedding ops do, run in the emulator.

The ops themselves are tested on every backend beside this file; here are the paths that depend on
the shape of a launch: rows of many chunks, rows longer than a warp, rows outside the table.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cuda_ext import error_bounds
from cuda_ext.emu import build
from cuda_ext.error_bounds import Bounded
from cuda_ext.ops.update import call_update_rows
from cuda_ext.row_rules import ROW_RULES, RowOptimizer, RowStep

RULES = tuple(ROW_RULES)
DIMS = (3, 4, 16, 100, 128, 130, 256)
"""Scalar and vector lanes, teams of 1 to 32 lanes, a tail of idle lanes, several parts per lane."""


@pytest.fixture
def lane_order() -> Iterator[Callable[[int], None]]:
    """Chooses the order in which the emulator runs threads."""
    yield build.set_seed
    build.set_seed(1)


def state_of(rule: RowOptimizer, table: Tensor) -> dict[str, Tensor]:
    """Returns a state that is not zero."""
    return {name: torch.rand(t.shape) for name, t in ROW_RULES[rule].new_state(table).items()}


def update(
    ops: Any,
    rule: RowOptimizer,
    table: Tensor,
    state: dict[str, Tensor],
    *lookups: Any,
    **more: Any,
) -> None:
    """Sorts and updates with the kernels; `lookups` are rows and gradients."""
    rows, gradients = lookups
    step = RowStep(
        *(torch.tensor(0.5), torch.tensor(3.0), more.get("weight_decay", 0.25)),
        *(more.get("inverse_scale"), more.get("overflow"), more.get("rounding_seed", 7)),
    )
    call_update_rows(
        *(ops, rule, table, state, ops.sort_rows(rows, table.shape[0]), gradients, step),
        *(more.get("source"), more.get("scale")),
    )


def skewed_rows(count: int, num_rows: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Half of the lookups read row 1: its segment crosses many chunks of 32."""
    rows = torch.randint(num_rows, (count,), dtype=dtype)
    return torch.where(torch.rand(count) < 0.5, 1, rows).to(dtype)


def check_update(
    ops: Any, rule: RowOptimizer, dim: int, rows: Tensor, dtype: torch.dtype, **more: Any
) -> None:
    """Compares table and state with float64."""
    table = torch.randn(40, dim)
    state = state_of(rule, table)
    gradients = torch.randn(more["source"].amax() + 1 if more else rows.numel(), dim).to(dtype)
    bound, state_bounds = error_bounds.updated(
        rule,
        Bounded.exact(table),
        {name: Bounded.exact(tensor) for name, tensor in state.items()},
        rows,
        Bounded.exact(gradients),
        lr=0.5,
        step=3.0,
        weight_decay=0.25,
        **more,
    )
    if more:
        more["inverse_scale"] = torch.tensor(more["inverse_scale"])
    update(ops, rule, table, state, rows, gradients, **more)
    assert bound.excess(table) <= 1
    for name, tensor in state.items():
        assert state_bounds[name].excess(tensor) <= 1, name


def test_row_of_more_chunks_than_a_block_has_teams(emulated: Any) -> None:
    torch.manual_seed(1)
    for dim, count in ((4, 20_000), (128, 2_000), (3, 4_000)):
        rows = torch.sort(skewed_rows(count, 40)).values
        check_update(emulated, "adagrad", dim, rows, torch.float32)


@pytest.mark.parametrize("dim", [3, 16, 128, 256])
def test_a_lane_order_changes_no_bit(
    emulated: Any, lane_order: Callable[[int], None], dim: int
) -> None:
    rows = skewed_rows(700, 40)
    gradients = torch.randn(700, dim)
    start = torch.randn(40, dim)
    found = []
    for seed in (1, 2, 99):
        lane_order(seed)
        table, sums = start.clone(), torch.ones(40)
        update(emulated, "rowwise_adagrad", table, {"sum": sums}, rows, gradients)
        found.append((table, sums))
    for table, sums in found[1:]:
        assert torch.equal(table, found[0][0])
        assert torch.equal(sums, found[0][1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dim", [6, 16, 256])
def test_rows_outside_the_table(emulated: Any, dim: int, dtype: torch.dtype) -> None:
    """They read as zeros, sort last, and leave the rows whose low bits they share alone."""
    table = torch.randn(37, dim)
    rows = skewed_rows(200, 37, dtype)
    bad = torch.arange(200) % 7 == 3
    rows[bad] = torch.tensor([37, -1, 64, -64, 2**30], dtype=dtype).repeat(12)[: int(bad.sum())]
    read = emulated.embedding_gather(table, rows, None, torch.float32)
    assert torch.equal(read[bad], torch.zeros_like(read[bad]))
    assert torch.equal(read[~bad], table[rows[~bad].long()])

    by_row, positions = emulated.sort_rows(rows, 37)
    kept = int((~bad).sum())
    assert torch.equal(by_row[:kept], rows[~bad].sort(stable=True).values)
    assert torch.equal(by_row[kept:], torch.full_like(by_row[kept:], -1))
    assert torch.equal(positions[kept:].long(), bad.nonzero().flatten())

    gradients = torch.randn(200, dim)
    expected = table.clone()
    update(emulated, "adagrad", table, {"sum": torch.ones(37, dim)}, rows, gradients)
    update(emulated, "adagrad", expected, {"sum": torch.ones(37, dim)}, rows[~bad], gradients[~bad])
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-5)
