# SPDX-License-Identifier: Apache-2.0
"""Exact search against sorted products in float64: the same rows in the same order, always."""

import math

import pytest
import torch

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import randn, spread
from tests.harness import refusal
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

NONE = torch.empty(0, dtype=torch.int64)
LARGEST = torch.finfo(torch.float32).max


def rand(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(9))


def check(table, bias, queries, count=10, excluded=(NONE, NONE)):
    """Compares with the definition; returns the rows that were scored."""
    packed = ops.pack_rows(table, bias)
    rows, scores, scored = ops.top_rows(packed, queries, count, *excluded)
    expected, best = reference.top_rows(
        queries.float(), table.float(), bias.float(), count, *excluded
    )
    assert torch.equal(rows, expected)
    assert torch.equal(scores, best)
    assert (scored <= len(table)).all()
    return scored


@pytest.mark.parametrize(
    ("num_rows", "dim"),
    spread([1000, 15, 64, 65, 1, 17, 63, 16, 200], [127, 64, 3, 1024, 1, 300, 15, 4, 2, 5]),
)
def test_rows_on_cpu_are_those_of_the_definition(num_rows, dim):
    table, bias = randn(num_rows, dim, seed=dim), randn(num_rows, seed=1)
    for count in (1, 7, 70):
        check(table, bias, randn(3, dim, seed=2), count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types_on_cpu_are_taken_for_float32(dtype):
    table, bias = randn(500, 33).to(dtype), randn(500, seed=1).to(dtype)
    check(table, bias, randn(4, 33, seed=2).to(dtype))


def test_rows_of_any_distance_on_cpu():
    wide = randn(700, 48)
    table = wide[1:-1, :24]  # as the items stand in an embedding table
    packed = ops.pack_rows(table, randn(698, seed=1))
    assert packed.table.data_ptr() == table.data_ptr()
    check(table, randn(698, seed=1), randn(5, 24, seed=2))
    check(wide.t()[:20], randn(20, seed=1), randn(5, 700, seed=2))


def test_a_scan_on_cpu_leaves_few_rows_to_score():
    """Most of the work is the scan's, and many chunks, tasks and queries come together."""
    table, bias = randn(150_000, 64), 0.1 * randn(150_000, seed=1)
    queries = randn(3, 64, seed=2)
    assert int(check(table, bias, queries).max()) < 3000
    many = randn(130, 64, seed=3)
    packed = ops.pack_rows(table[:20_000], bias[:20_000])
    rows, scores, _ = ops.top_rows(packed, many, 5)
    for query in range(130):
        alone = ops.top_rows(packed, many[query : query + 1], 5)
        assert torch.equal(rows[query], alone[0][0])
        assert torch.equal(scores[query], alone[1][0])


def test_threads_do_not_change_the_rows_on_cpu(cpu_backend):
    packed = ops.pack_rows(randn(30_000, 16).round(), randn(30_000, seed=1).round())
    queries = randn(3, 16, seed=2).round()
    cpu_backend.check_order(lambda: ops.top_rows(packed, queries, 50)[0])


@pytest.mark.parametrize("count", [1, 10, 400])
def test_ties_on_cpu_go_to_the_smaller_row(count):
    few = randn(7, 12).round()
    table = few[torch.randint(7, (3000,), generator=torch.Generator().manual_seed(3))]
    check(table, torch.zeros(3000), randn(4, 12, seed=2).round(), count)
    check(torch.ones(300, 12), torch.zeros(300), randn(4, 12, seed=2), count)
    check(torch.zeros(300, 12), torch.zeros(300), randn(4, 12, seed=2), count)
    check(torch.zeros(300, 12), randn(300).round(), torch.zeros(2, 12), count)


def test_rows_that_differ_in_their_last_bit_are_told_apart_on_cpu():
    table = torch.ones(2000, 8)
    one_bit = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    table[1234, 3] = one_bit
    table[777] = one_bit
    check(table, torch.zeros(2000), torch.ones(1, 8))
    check(table, torch.full((2000,), 2.0**20), torch.ones(1, 8))  # float32 would see all equal
    check(-table, torch.full((2000,), -(2.0**24)), torch.full((1, 8), 2.0**-12))


SCALES = {
    "huge": (LARGEST / 4, 1.0, 1.0),
    "tiny": (1e-38, 1.0, 0.0),
    "subnormal": (1e-44, 1.0, 0.0),
    "huge_queries": (1.0, 1e37, 1.0),
    "tiny_queries": (1.0, 1e-40, 0.0),
    "both_huge": (1e38, 1e38, 1.0),
    "both_tiny": (1e-44, 1e-44, 0.0),
    "huge_and_tiny": (1e38, 1e-44, 0.0),
    "huge_biases": (1.0, 1.0, LARGEST / 8),
}


@pytest.mark.parametrize("scale", SCALES)
def test_numbers_of_any_size_on_cpu(scale):
    of_table, of_queries, of_bias = SCALES[scale]
    bounded = lambda *shape, seed: randn(*shape, seed=seed).clamp(-4, 4)  # noqa: E731
    table, bias = bounded(900, 20, seed=0) * of_table, bounded(900, seed=1) * of_bias
    check(table.clamp(-LARGEST, LARGEST), bias, bounded(3, 20, seed=2) * of_queries)


def test_rows_of_very_different_sizes_on_cpu():
    table = randn(4000, 9) * 10 ** (30 * rand(4000, 1) - 15)
    table[::3] *= 10 ** (10 * rand(1334, 9) - 5)  # one column sets the scale
    table[5::50] = 0
    queries = randn(5, 9, seed=2) * torch.tensor([1e-12, 1e-3, 1, 1e6, 1e15]).unsqueeze(1)
    check(table, randn(4000, seed=1), queries, 100)
    check(table, torch.zeros(4000), -table[:3], 100)


def test_excluded_rows_are_left_out_on_cpu():
    table, bias, queries = randn(200, 6), randn(200, seed=1), randn(4, 6, seed=2)
    best = reference.top_rows(queries, table, bias, 200, NONE, NONE)[0]
    query = torch.arange(4).repeat_interleave(8).flip(0)
    row = best[:, :8].flatten().flip(0)
    kept = query != 1  # one query excludes nothing
    excluded = (query[kept], row[kept])
    check(table, bias, queries, 10, excluded)
    outside = (torch.tensor([0, 1, 2]), torch.tensor([-1, -1, 200]))
    check(table, bias, queries, 10, outside)
    everything = (torch.full((200,), 2), torch.arange(200))
    check(table, bias, queries, 10, everything)
    twice = (torch.tensor([0, 0, 3]), torch.tensor([5, 5, 9]))
    check(table, bias, queries, 200, twice)


def test_no_queries_and_no_rows_on_cpu():
    check(randn(50, 6), randn(50, seed=1), torch.empty(0, 6))
    check(torch.empty(0, 6), torch.empty(0), randn(2, 6), 3)


def test_the_error_of_each_row_is_within_its_bound_on_cpu():
    table = randn(1000, 37) * 10 ** (8 * rand(1000, 1) - 4)
    packed = ops.pack_rows(table, torch.zeros(1000))
    blocks, groups, rows, _ = packed.codes.shape
    levels = packed.codes.transpose(1, 2).reshape(blocks * rows, groups * 4).double() - 128
    restored = (levels * packed.scales.double().unsqueeze(1))[:1000, :37]
    distance = (restored - table.double()).norm(dim=1)
    assert (distance <= packed.residual * packed.scales[:1000].double()).all()
    assert packed.residual < 0.5 * math.sqrt(37)
    assert packed.num_bytes == 1024 * (40 + 8)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(value):
    table, bias = randn(40_000, 3), randn(40_000)
    table[39_000, 1] = value
    with refusal("row 39000", "column 1", value, kind=ValueError):
        ops.pack_rows(table, bias)
    bias[7] = value
    with refusal("row 7", "bias", value, kind=ValueError):
        ops.pack_rows(table[:100], bias[:100])
    packed = ops.pack_rows(table[:100], bias[100:200])
    queries = randn(4, 3)
    queries[2, 1] = value
    with refusal("query 2", "column 1", kind=RuntimeError):
        ops.top_rows(packed, queries, 3)


def test_tables_that_no_scan_takes_are_refused():
    for table in (randn(5, 1025), randn(5, 3).double(), torch.ones(5, 3, dtype=torch.int64)):
        assert not ops.scans_rows(table)
        with pytest.raises(ValueError, match=r"float64|int64|1025"):
            ops.pack_rows(table, torch.zeros(5))


def test_what_does_not_fit_together_is_refused():
    packed = ops.pack_rows(randn(100, 6), randn(100))
    with refusal("queries", "[B, D]", kind=RuntimeError):
        ops.top_rows(packed, randn(2, 5), 3)
    with refusal("count", 1, 0, kind=RuntimeError):
        ops.top_rows(packed, randn(2, 6), 0)
    arguments = (randn(2, 6), packed.table, packed.codes, packed.scales, packed.biases, 1.0, 1.0)
    with refusal("offsets", 0, 2, kind=RuntimeError):
        torch.ops.cuda_ext.top_rows(*arguments, torch.tensor([1, 2]), torch.tensor([0, 3, 2]), 3)
    with refusal("codes", 1024, 512, kind=RuntimeError):
        torch.ops.cuda_ext.top_rows(
            *(*arguments[:2], packed.codes[:1].contiguous(), *arguments[3:]),
            *(NONE, torch.tensor([0, 0, 0]), 3),
        )
