# SPDX-License-Identifier: Apache-2.0
"""What only the CUDA kernels of the dot interaction do: TF32, rows outside the table."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cuda_ext import reference
from cuda_ext.emu import build

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
