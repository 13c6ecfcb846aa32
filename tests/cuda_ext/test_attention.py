# SPDX-License-Identifier: Apache-2.0
"""Attention over packed sequences against its definition."""

import math

import pytest
import torch

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import spread
from tests.harness import refusal
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

LENGTHS = {
    "short": ([5, 1, 7, 3], None),
    "several blocks of queries": ([130, 64, 65, 200], None),
    "few queries": ([5, 9, 70, 3], [2, 0, 66, 3]),
    "an empty sequence": ([4, 0, 3], None),
}
HEADS = [(1, 12), (3, 4), (2, 32), (1, 33)]
"""Heads and columns of each, whole vectors or not."""

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 0.02}


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def arguments_of(shape, heads, dim, dtype, *, causal=False, dropped_levels=0):
    """Returns the arguments of `ops.attention`; the queries of a sequence are its last tokens."""
    generator = torch.Generator().manual_seed(dim)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    lengths, asked = LENGTHS[shape]
    of_keys = offsets_of(lengths)
    of_queries = of_keys if asked is None else offsets_of(asked)
    columns = heads * dim * (3 if asked is None else 2)
    fused = draw(sum(lengths), columns).to(dtype).requires_grad_()
    queries = positions = draws = None
    if asked is not None:
        queries = draw(sum(asked), heads * dim).to(dtype).requires_grad_()
        ranges = [torch.arange(n)[n - count :] for count, n in zip(asked, lengths, strict=True)]
        positions = torch.cat(ranges)
    if dropped_levels:
        count = ops.count_draws(of_queries, of_keys, heads)
        draws = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return (
        (queries, fused, of_queries, of_keys, heads),
        {
            "positions": positions,
            "causal": causal,
            "draws": draws,
            "dropped_levels": dropped_levels,
        },
    )


def defined(queries, fused, of_queries, of_keys, heads, **options):
    return reference.attention(
        *(queries, fused, of_queries, of_keys, options["positions"], options["causal"]),
        *(heads, options["draws"], options["dropped_levels"]),
    )


def outcome(function, arguments, options):
    """Returns the output and the gradients of its weighted sum."""
    output = function(*arguments, **options)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    leaves = [t for t in arguments[:2] if t is not None]
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)]


@pytest.mark.parametrize(
    ("shape", "size", "causal", "dropped_levels"),
    spread(list(LENGTHS), HEADS, [False, True], [0, 100]),
    ids=str,
)
def test_kernel_on_cpu_equals_the_definition(shape, size, causal, dropped_levels):
    heads, dim = size
    for dtype, tolerance in TOLERANCES.items():
        arguments, options = arguments_of(
            shape, heads, dim, dtype, causal=causal, dropped_levels=dropped_levels
        )
        results = outcome(ops.attention, arguments, options)
        exact = tuple(
            t.detach().double().requires_grad_() if t is not None else t for t in arguments[:2]
        )
        expected = outcome(defined, (*exact, *arguments[2:]), options)
        for result, wanted in zip(results, expected, strict=True):
            assert result.dtype == dtype
            torch.testing.assert_close(result.double(), wanted, rtol=tolerance, atol=tolerance)


def test_threads_change_nothing_on_cpu(cpu_backend):
    arguments, options = arguments_of(
        "several blocks of queries", 2, 32, torch.float32, causal=True, dropped_levels=30
    )
    cpu_backend.check_order(lambda: outcome(ops.attention, arguments, options))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 30.0, 1e4])
def test_scores_of_any_size_on_cpu(scale):
    """The exponential is exact to a few units in the last place, down to where it is zero."""
    (queries, fused, *rest), options = arguments_of("short", 1, 8, torch.float32)
    fused = fused.detach()
    fused[:, :8] *= scale
    result = ops.attention(queries, fused, *rest, **options)
    expected = defined(queries, fused.double(), *rest, **options)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4 * max(1, scale), atol=1e-5)


def test_nan_and_infinity_reach_the_output_on_cpu():
    for value in (math.nan, math.inf):
        (queries, fused, *rest), options = arguments_of("short", 1, 8, torch.float32)
        fused = fused.detach()
        fused[6, 8] = value  # a key of the third sequence, which begins at 6
        result = ops.attention(queries, fused, *rest, **options)
        expected = defined(queries, fused, *rest, **options)
        assert expected[6:13].isnan().any()
        torch.testing.assert_close(result, expected, equal_nan=True)


def test_what_leads_out_of_a_sequence_is_refused():
    (_, fused, of_queries, of_keys, heads), _ = arguments_of("short", 1, 12, torch.float32)
    call = lambda *a, **o: ops.attention(None, fused, *a, heads, **o)  # noqa: E731
    with refusal("key_offsets", 16, kind=RuntimeError):
        call(of_queries, of_keys + 1)
    with refusal("query_offsets", kind=RuntimeError):
        call(torch.tensor([0, 9, 6, 13, 16]), of_keys)
    with refusal("sequences", kind=RuntimeError):
        call(of_queries, torch.tensor([0, 16]))
    positions = torch.zeros(16, dtype=torch.int64)
    positions[4] = 5
    with refusal("query 4", "position 5", "5 keys", kind=RuntimeError):
        call(of_queries, of_keys, positions=positions, causal=True)
    with refusal("draws", kind=RuntimeError):
        call(of_queries, of_keys, draws=torch.zeros(10, dtype=torch.uint8), dropped_levels=3)
    with refusal("fused", "float32", "float16", "bfloat16", kind=RuntimeError):
        ops.attention(None, fused.detach().long(), of_queries, of_keys, heads)
