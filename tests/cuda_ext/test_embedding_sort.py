# SPDX-License-Identifier: Apache-2.0
"""sort_rows on every backend: the one result that a stable sort has."""

import pytest
import torch

from tests.cuda_ext.conftest import spread

COUNTS = [8193, 1000, 0, 70_000, 2, 1, 300]


@pytest.mark.parametrize(
    ("count", "num_rows", "row_type"),
    spread(COUNTS, [2_600_000, 2048, 1, 2**31 - 1, 2], [torch.int32, torch.int64]),
    ids=str,
)
def test_sort_is_stable(backend, count, num_rows, row_type):
    generator = torch.Generator().manual_seed(count)
    rows = torch.randint(0, num_rows, (count,), generator=generator).to(row_type)
    by_row, positions = backend.sort_rows(rows, num_rows)
    expected, expected_positions = rows.sort(stable=True)
    assert by_row.dtype == row_type
    assert positions.dtype == torch.int32
    assert torch.equal(by_row, expected)
    assert torch.equal(positions.long(), expected_positions)


@pytest.mark.parametrize("num_rows", [2**32 + 5, 2**45])
def test_sort_of_more_rows_than_32_bits_name(backend, num_rows):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, num_rows, (5000,), generator=generator)
    by_row, positions = backend.sort_rows(rows, num_rows)
    expected, expected_positions = rows.sort(stable=True)
    assert torch.equal(by_row, expected)
    assert torch.equal(positions.long(), expected_positions)


@pytest.mark.parametrize("shift", [0, 5, 17])
def test_sort_of_rows_that_differ_in_a_few_bits(backend, shift):
    generator = torch.Generator().manual_seed(1)
    rows = (torch.randint(0, 9, (3000,), generator=generator) << shift) + (1 << 25)
    by_row, positions = backend.sort_rows(rows, 2**26)
    expected, expected_positions = rows.sort(stable=True)
    assert torch.equal(by_row, expected)
    assert torch.equal(positions.long(), expected_positions)


def test_sort_takes_rows_of_any_shape_and_leaves_them(backend):
    rows = torch.tensor([[5, 1], [5, 0]])
    before = rows.clone()
    by_row, positions = backend.sort_rows(rows, 6)
    assert by_row.tolist() == [0, 1, 5, 5]
    assert positions.tolist() == [3, 1, 0, 2]
    assert torch.equal(rows, before)


def test_sort_has_the_same_result_for_every_number_of_threads(cpu_backend, each_thread_count):
    rows = torch.randint(0, 10**6, (40_000,), generator=torch.Generator().manual_seed(2))
    first, *others = each_thread_count(lambda: torch.stack(cpu_backend.sort_rows(rows, 10**6)))
    assert all(torch.equal(first, other) for other in others)
