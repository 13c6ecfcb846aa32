# SPDX-License-Identifier: Apache-2.0
"""SGD without a sort, against the reference; on the CPU in the order of the lookups."""

import pytest
import torch

from cuda_ext import error_bounds
from cuda_ext.error_bounds import Bounded
from tests.cuda_ext.conftest import spread

LR = torch.tensor(0.3)


def problem(count, dim, rows, gradient_dtype, row_dtype, shared):
    generator = torch.Generator().manual_seed(count + dim)
    table = torch.randn(rows, dim, generator=generator)
    lookups = (torch.rand(count, generator=generator) ** 4 * rows).to(row_dtype)
    num_gradients = max(count // 3, 1) if shared else count
    gradients = torch.randn(num_gradients, dim, generator=generator).to(gradient_dtype)
    source = scale = None
    if shared:
        source = torch.randint(num_gradients, (count,), generator=generator, dtype=torch.int32)
        scale = torch.rand(count, generator=generator)
    return table, lookups, gradients, source, scale


@pytest.mark.parametrize(
    ("size", "gradient_dtype", "shared"),
    spread(
        [(1000, 16, 5), (5000, 33, 400), (9000, 128, 12_000), (7, 3, 2), (0, 4, 3), (1, 1, 1)],
        *([torch.float32, torch.float16, torch.bfloat16], [False, True]),
    ),
    ids=str,
)
def test_equals_the_reference(backend, size, gradient_dtype, shared):
    count, dim, rows = size
    for row_dtype in (torch.int32, torch.int64):
        table, lookups, gradients, source, scale = problem(
            count, dim, rows, backend.taken(gradient_dtype), row_dtype, shared
        )
        half = torch.tensor(0.5)
        options = {"step": 1.0, "source": source, "scale": scale, "in_chunks": False}
        bound, _ = error_bounds.updated(
            *("sgd", Bounded.exact(table), {}, lookups, Bounded.exact(gradients)),
            **({"lr": float(LR), "inverse_scale": 0.5} | options),
        )
        backend.run("sgd_rows_unsorted", table, lookups, gradients, source, scale, LR, half, None)
        assert bound.excess(table) <= 1


def test_overflow_changes_nothing(backend):
    table, lookups, gradients, *_ = problem(50, 8, 9, torch.float32, torch.int32, False)
    before = table.clone()
    overflow = torch.tensor(True)
    backend.run("sgd_rows_unsorted", table, lookups, gradients, None, None, LR, None, overflow)
    assert torch.equal(table, before)


def test_the_same_bits_for_every_number_of_threads(cpu_backend, each_thread_count):
    start, lookups, gradients, *_ = problem(20_000, 24, 300, torch.float32, torch.int32, False)

    def run():
        table = start.clone()
        cpu_backend.run("sgd_rows_unsorted", table, lookups, gradients, None, None, LR, None, None)
        return table

    results = each_thread_count(run)
    assert all(torch.equal(result, results[0]) for result in results)
    in_order = start.clone()
    for row, gradient in zip(lookups.tolist(), gradients, strict=True):
        in_order[row] -= gradient * LR
    torch.testing.assert_close(results[0], in_order, rtol=1e-4, atol=1e-5)


def test_a_row_outside_the_table_is_refused(cpu_backend):
    table, lookups, gradients, *_ = problem(50, 8, 9, torch.float32, torch.int32, False)
    lookups[17] = 9
    with pytest.raises(RuntimeError, match="row at position 17 is outside the table of 9 rows"):
        cpu_backend.run("sgd_rows_unsorted", table, lookups, gradients, None, None, LR, None, None)
