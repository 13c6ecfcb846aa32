# SPDX-License-Identifier: Apache-2.0
"""The dot interaction kernels against their definition, on every backend."""

import math

import pytest
import torch

from cuda_ext import error_bounds, ops, reference
from tests.cuda_ext.conftest import randn, spread

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [  # batch, vectors, dim: around the edges of tiles and vectors of every instruction set
    (0, 27, 128),
    (13, 27, 128),  # more samples than the emulated device has warps
    (1, 1, 1),
    (7, 1, 128),
    (33, 2, 3),
    (7, 5, 7),
    (2, 5, 256),
    (33, 11, 8),
    (7, 14, 12),
    (2, 14, 160),
    (1, 15, 16),
    (7, 15, 100),
    (33, 16, 48),
    (7, 17, 1),
    (2, 17, 64),
    (33, 27, 16),
    (33, 27, 128),
    (1, 32, 128),
    (7, 32, 12),
    (2, 33, 100),
    (7, 33, 48),
    (2, 64, 256),
    (1, 64, 3),
    # Where NVIDIA's DLRM kernels read or write out of bounds, or refuse: few categorical features,
    # none, columns that are no multiple of 8, or other than 128.
    (33, 8, 128),
    (33, 1, 128),
    (33, 27, 48),
    (33, 27, 12),
    (33, 27, 160),
]


def samples(shape, dtype):
    """Returns vectors 1..N-1, vector 0, and a gradient of the output."""
    batch, vectors, dim = shape
    generator = torch.Generator().manual_seed(1000 * vectors + dim)
    width = reference.interaction_width(vectors, dim)
    sizes = [(batch, vectors - 1, dim), (batch, dim), (batch, width)]
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def found_by(backend, features, bottom, gradient, tf32=False):
    """Returns output and gradients of the kernels."""
    output = backend.run("dot_interaction", features, bottom, tf32)
    gradients = backend.run("dot_interaction_backward", gradient, features, bottom, tf32)
    return output, *gradients


@pytest.mark.parametrize(("shape", "dtype"), spread(SHAPES, DTYPES), ids=str)
def test_bounds_of_sums(backend, shape, dtype):
    """Forward and backward err by no more than their sums may."""
    dtype = backend.taken(dtype)
    given = samples(shape, dtype)
    results = found_by(backend, *given)
    bounds = error_bounds.dot_interaction(*given)
    for result, bound in zip(results, bounds, strict=True):
        assert result.dtype == dtype
        assert bound.excess(result) <= 1
    dim, output = shape[2], results[0]
    products = shape[1] * (shape[1] - 1) // 2
    assert torch.equal(output[:, :dim], given[1])
    assert not output[:, dim + products :].any()


def fused(table, rows, bottom):
    return ops.gather_dot_interaction(table, rows, bottom)


def apart(table, rows, bottom):
    return ops.dot_interaction(table[rows], bottom)


def together(table, rows, bottom):
    return ops.dot_interaction(torch.cat([bottom.unsqueeze(1), table[rows]], dim=1))


@pytest.mark.parametrize("op", [fused, apart, together])
@pytest.mark.parametrize("num_features", [0, 3, 9])
def test_gradients_of_the_ops(op, num_features):
    """They are those of the definition in float64, for a table that requires one too."""
    leaves = [randn(6, 5).requires_grad_(), randn(4, 5, seed=1).requires_grad_()]
    rows = torch.arange(4 * num_features).view(4, num_features) % 6
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    output, expected = op(leaves[0], rows, leaves[1]), apart(exact[0], rows, exact[1])
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    weights = randn(*output.shape, seed=2)
    for found, wanted in zip(
        torch.autograd.grad(output, leaves, weights),
        torch.autograd.grad(expected, exact, weights.double()),
        strict=True,
    ):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype", "table_dtype", "row_dtype"),
    spread(
        [(33, 27, 128), (33, 27, 16), (7, 12, 20), (1, 2, 1), (1, 41, 72)],
        *(DTYPES, [torch.float32, torch.bfloat16], [torch.int32, torch.int64]),
    ),
    ids=str,
)
def test_gathered_rows(backend, shape, dtype, table_dtype, row_dtype):
    """They give the bits of a lookup first."""
    dtype = backend.taken(dtype)
    batch, vectors, dim = shape
    _, bottom, gradient = samples(shape, dtype)
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(100, dim, generator=generator).to(table_dtype)
    rows = torch.randint(100, (batch, vectors - 1), generator=generator).to(row_dtype)
    rows[0, 0], rows[-1, -1] = 99, 0
    features = table[rows.long()].to(dtype)
    fused = [
        backend.run("gather_dot_interaction", table, rows, bottom, None, None, False),
        *backend.run("gather_dot_interaction_backward", gradient, table, rows, bottom, None, False),
    ]
    apart = found_by(backend, features, bottom, gradient)
    # CUDA multiplies float16 with bfloat16 rows without tensor cores: sums in another order.
    same_order = backend.name == "cpu" or (dtype, table_dtype) != (torch.float16, torch.bfloat16)
    for ours, theirs in zip(fused, apart, strict=True):
        if same_order:
            assert torch.equal(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_give_the_same_bits(backend, dtype):
    """At odd addresses, and of samples that have their vector 0 among the others."""
    features, bottom, gradient = samples((7, 11, 16), backend.taken(dtype))
    usual = found_by(backend, features, bottom, gradient)
    shifted = torch.cat([features.new_zeros(1), features.flatten()])[1:].view_as(features)
    strided = torch.cat([bottom, bottom[:, :3]], dim=1)[:, :16]
    together = torch.cat([bottom.unsqueeze(1), features], dim=1)
    for views in ((shifted, strided), (together[:, 1:], together[:, 0])):
        for ours, theirs in zip(found_by(backend, *views, gradient), usual, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    spread([(27, 64), (40, 24), (9, 11)], [torch.float32, torch.bfloat16]),
    ids=str,
)
def test_same_bits_in_any_order(backend, shape, dtype):
    given = samples((1001 if backend.name == "cpu" else 14, *shape), dtype)
    backend.check_order(lambda: found_by(backend, *given, tf32=True))


def test_a_batch_larger_than_the_caches_gives_the_bits_of_its_parts(cpu_backend):
    """Large results are written past the caches, by other instructions."""
    backend = cpu_backend
    given = samples((12_000, 27, 16), torch.float32)
    whole = found_by(backend, *given)
    parts = [
        found_by(backend, *given_part)
        for given_part in zip(*(t.split(5000) for t in given), strict=True)
    ]
    for ours, theirs in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(ours, torch.cat(theirs))


def test_a_nan_stays_within_its_products(backend):
    features, bottom, _ = samples((3, 6, 10), torch.float32)
    features[1, 2] = float("nan")  # vector 3 of sample 1
    output = backend.run("dot_interaction", features, bottom, False)
    expected = reference.dot_interaction(features, bottom)
    assert torch.equal(output.isnan(), expected.isnan())


LARGE = {torch.float16: 6e4, torch.bfloat16: 3e38, torch.float32: 3e38}
"""Close to the largest number of each type: twice that is infinite."""


@pytest.mark.parametrize(
    ("num_vectors", "dim", "dtype"),
    [
        (5, 16, torch.float16),  # half types of whole vectors: with tensor cores on CUDA
        (40, 16, torch.bfloat16),
        (40, 10, torch.float16),
        (5, 10, torch.bfloat16),
        (5, 16, torch.float32),
    ],
    ids=str,
)
def test_backward_sets_a_flag_where_a_row_gradient_overflows(
    device_backend, num_vectors, dim, dtype
):
    """The gradient of row 2 is the pair's times row 1: twice as large where rows are of twos."""
    samples, run = 6, device_backend.run
    table = torch.full((3, dim), 2.0)
    rows = torch.ones(samples, num_vectors - 1, dtype=torch.int32)
    bottom = torch.ones(samples, dim, dtype=dtype)
    quiet = torch.zeros(samples, reference.interaction_width(num_vectors, dim), dtype=dtype)
    of_pair, of_bottom = (5, dim + 1), (5, 0)  # vectors 2 and 0; columns that are copied
    for place, value, expected in (
        (of_pair, 0.0, False),
        (of_pair, LARGE[dtype] / 4, False),
        (of_pair, LARGE[dtype], False),  # times the ones of bottom
        ((5, dim + 2), LARGE[dtype], True),  # vectors 2 and 1, both of twos
        (of_pair, math.nan, True),
        (of_pair, -math.inf, True),
        (of_bottom, math.inf, False),  # no row's gradient
    ):
        gradient, overflow = quiet.clone(), torch.tensor(False)
        gradient[place] = value
        to_rows, _ = run(
            *("gather_dot_interaction_backward", gradient, table, rows, bottom, overflow), False
        )
        assert bool(overflow) == expected == bool((~torch.isfinite(to_rows)).any())
    overflow = torch.tensor(True)
    run(*("gather_dot_interaction_backward", quiet, table, rows, bottom, overflow, False))
    assert overflow, "a flag that is set stays so"


@pytest.mark.parametrize("num_vectors", [4, 66])  # 66 are too many for the kernels
def test_overflow_reaches_the_flag_of_a_forward_pass(num_vectors):
    table, overflow = torch.ones(9, 8), torch.tensor(False)
    rows = torch.ones(3, num_vectors - 1, dtype=torch.int32)
    bottom = torch.ones(3, 8, requires_grad=True)
    anchor = ops.row_gradient_anchor((*rows.shape, 8), torch.float32, torch.device("cpu"))
    output = ops.gather_dot_interaction(table, rows, bottom, anchor=anchor, overflow=overflow)
    gradient = torch.zeros_like(output)
    torch.autograd.backward(output, gradient, retain_graph=True)
    assert not overflow
    gradient[1, 9] = math.inf
    torch.autograd.backward(output, gradient)
    assert overflow


@pytest.mark.parametrize(
    "shape",
    [
        (13, 27, 128),  # more samples than the emulated device has warps
        (5, 1, 8),
        (2, 2, 16),
        (3, 17, 40),  # a tail of columns in both directions
        (3, 6, 20),
        (2, 32, 24),
        (1, 33, 72),  # the kernels for up to 64 vectors
        (1, 64, 256),
        (4, 5, 13),  # no multiple of 8: the kernels for any size
    ],
    ids=str,
)
def test_tf32_is_used_and_within_its_bound(emulated, shape):
    """Rounding to tf32 changes a factor by 2^-11 of it at most, so a product by 2^-10 and a little.

    What float32 adds, in sums of up to 256 products, is below a tenth of that.
    """
    given = samples(shape, torch.float32)
    found = found_by(emulated, *given, tf32=True)
    bounds = error_bounds.dot_interaction(*(tensor.double() for tensor in given))
    magnitudes = error_bounds.dot_interaction(*(tensor.double().abs() for tensor in given))
    for result, bound, sums in zip(found, bounds, magnitudes, strict=True):
        assert ((result - bound.value).abs() <= 1.1 * 2**-10 * sums.value + 1e-6).all()
    assert torch.equal(found[0][:, : shape[2]], given[1])  # copied, not rounded
    if shape[2] % 4 == 0 and shape[1] > 1:
        assert not torch.equal(found[0], found_by(emulated, *given)[0])


@pytest.mark.parametrize("dim", [16, 10])
def test_rows_outside_the_table_read_as_zeros_on_a_device(emulated, dim):
    table = torch.randn(4, dim)
    rows = torch.tensor([[0, 4, 3], [-1, 2, 2**30]], dtype=torch.int32)
    bottom = torch.randn(2, dim)
    inside = (rows >= 0) & (rows < 4)
    vectors = torch.where(inside.unsqueeze(2), table[rows.clamp(0, 3).long()], 0)
    for tf32 in (False, True):
        found = emulated.run("gather_dot_interaction", table, rows, bottom, None, None, tf32)
        assert torch.equal(found, emulated.run("dot_interaction", vectors, bottom, tf32))
