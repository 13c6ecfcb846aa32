# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of the dot interaction, run in the emulator: every path, type and tail."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cuda_ext import error_bounds, reference
from cuda_ext.emu import build

HALVES = (torch.float16, torch.bfloat16)
SHAPES = (
    (13, 27, 128),  # more samples than the emulated device has warps
    (5, 1, 8),
    (2, 2, 16),
    (3, 17, 40),  # a tail of columns in both directions
    (2, 32, 24),
    (1, 33, 72),  # the kernels for up to 64 vectors
    (1, 64, 256),
    (4, 5, 13),  # no multiple of 8: the kernels for any size
)


@pytest.fixture
def lane_order() -> Iterator[Callable[[int], None]]:
    """Chooses the order in which the emulator runs threads."""
    yield build.set_seed
    build.set_seed(1)


def reference_with_gradients(vectors: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    vectors = vectors.detach().requires_grad_()
    output = reference.dot_interaction(vectors)
    (to_vectors,) = torch.autograd.grad(output, vectors, gradient)
    return output.detach(), to_vectors


def tf32_bounds(vectors: Tensor, gradient: Tensor) -> list[Tensor]:
    """Rounding to tf32 changes a factor by 2^-11 of it at most, so a product by 2^-10 and a little.

    The sums over the magnitudes of the products are the interaction of the magnitudes. What float32
    adds, in sums of up to 256 products, is below a tenth of that.
    """
    sums = reference_with_gradients(vectors.abs(), gradient.abs())
    return [1.1 * 2**-10 * bound for bound in sums]


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(emulated: Any, shape: Any, dtype: Any) -> None:
    torch.manual_seed(1)
    vectors = torch.randn(shape).to(dtype)
    width = reference.interaction_width(shape[1], shape[2])
    gradient = torch.randn(shape[0], width).to(dtype)
    to_output, *to_gradients = error_bounds.dot_interaction(vectors[:, 1:], vectors[:, 0], gradient)
    output = emulated.dot_interaction(vectors, None, False)
    to_vectors, _ = emulated.dot_interaction_backward(gradient, vectors, None, False)
    assert to_output.excess(output) <= 1
    assert to_gradients[0].excess(to_vectors[:, 1:]) <= 1
    assert to_gradients[1].excess(to_vectors[:, 0]) <= 1


@pytest.mark.parametrize("shape", [*SHAPES, (3, 6, 20)], ids=str)
def test_tf32_is_used_and_within_its_bound(emulated: Any, shape: Any) -> None:
    torch.manual_seed(1)
    vectors = torch.randn(shape)
    width = reference.interaction_width(shape[1], shape[2])
    gradient = torch.randn(shape[0], width)
    truths = reference_with_gradients(vectors.double(), gradient.double())
    bounds = tf32_bounds(vectors.double(), gradient.double())
    output = emulated.dot_interaction(vectors, None, True)
    to_vectors, _ = emulated.dot_interaction_backward(gradient, vectors, None, True)
    for found, truth, bound in zip((output, to_vectors), truths, bounds, strict=True):
        assert ((found - truth).abs() <= bound + 1e-6).all()
    assert torch.equal(output[:, : shape[2]], vectors[:, 0])  # copied, not rounded
    if shape[2] % 4 == 0 and shape[1] > 1:
        exact = emulated.dot_interaction(vectors, None, False)
        assert not torch.equal(output, exact)


@pytest.mark.parametrize("rows_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("shape", [(9, 26, 128), (2, 4, 24), (1, 40, 72), (3, 3, 10)], ids=str)
def test_gathered_rows_give_the_bits_of_given_vectors(
    emulated: Any, shape: Any, dtype: Any, table_dtype: Any, rows_dtype: Any
) -> None:
    """Gathered rows are rounded first, so both ways multiply the same numbers in one order."""
    torch.manual_seed(1)
    batch, features, dim = shape
    table = torch.randn(19, dim).to(table_dtype)
    rows = torch.randint(19, (batch, features), dtype=rows_dtype)
    bottom = torch.randn(batch, dim).to(dtype)
    gradient = torch.randn(batch, reference.interaction_width(features + 1, dim)).to(dtype)
    vectors = table[rows.long()].to(dtype)
    given = emulated.dot_interaction(vectors, bottom, False)
    gathered = emulated.gather_dot_interaction(table, rows, bottom, None, None, False)
    given_gradients = emulated.dot_interaction_backward(gradient, vectors, bottom, False)
    gathered_gradients = emulated.gather_dot_interaction_backward(
        gradient, table, rows, bottom, None, False
    )
    # A bfloat16 table with a wider type goes through the kernels without tensor cores.
    exact = table_dtype in (dtype, torch.float32)
    tolerance = 0.0 if exact else torch.finfo(dtype).eps
    for found, expected in zip(
        (gathered, *gathered_gradients), (given, *given_gradients), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=64 * tolerance)


@pytest.mark.parametrize("dim", [16, 10])
def test_rows_outside_the_table_read_as_zeros(emulated: Any, dim: int) -> None:
    table = torch.randn(4, dim)
    rows = torch.tensor([[0, 4, 3], [-1, 2, 2**30]], dtype=torch.int32)
    bottom = torch.randn(2, dim)
    inside = (rows >= 0) & (rows < 4)
    vectors = torch.where(inside.unsqueeze(2), table[rows.clamp(0, 3).long()], 0)
    for tf32 in (False, True):
        found = emulated.gather_dot_interaction(table, rows, bottom, None, None, tf32)
        expected = emulated.dot_interaction(vectors, bottom, tf32)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(14, 27, 64), (3, 40, 24), (4, 9, 11)], ids=str)
def test_a_lane_order_changes_no_bit(
    emulated: Any, lane_order: Callable[[int], None], shape: Any, dtype: Any
) -> None:
    torch.manual_seed(1)
    vectors = torch.randn(shape).to(dtype)
    gradient = torch.randn(shape[0], reference.interaction_width(*shape[1:])).to(dtype)
    found = []
    for seed in (1, 7):
        lane_order(seed)
        output = emulated.dot_interaction(vectors, None, True)
        found.append((output, emulated.dot_interaction_backward(gradient, vectors, None, True)[0]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_unaligned_vectors(emulated: Any) -> None:
    """A view that begins two bytes into its storage cannot be read 16 bytes at a time."""
    storage = torch.randn(3 * 5 * 16 + 1).to(torch.bfloat16)
    vectors = storage[1:].view(3, 5, 16)
    found = emulated.dot_interaction(vectors, None, False)
    aligned = emulated.dot_interaction(vectors.clone(), None, False)
    torch.testing.assert_close(found, aligned)
