# SPDX-License-Identifier: Apache-2.0
"""Dropout by random bytes against its definition."""

import math

import pytest
import torch

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import spread
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")


def drawn(count):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    spread(
        [(17, 64), (300, 333), (3, 5), (0,), (1,)], [torch.float32, torch.float64, torch.bfloat16]
    ),
    ids=str,
)
def test_kernel_on_cpu_equals_the_definition(shape, dtype):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    draws = drawn(values.numel())
    for levels in (0, 1, 51, 128, 255):
        result = ops.byte_dropout(values, draws, levels)
        expected = reference.byte_dropout(values.double(), draws, levels)
        assert result.dtype == dtype
        rounding = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(result.double(), expected, rtol=rounding, atol=1e-7)


def test_gradient_has_the_same_zeros_on_cpu():
    values = torch.randn(40, 9, dtype=torch.float64).requires_grad_()
    draws = drawn(values.numel())
    assert torch.autograd.gradcheck(lambda v: ops.byte_dropout(v, draws, 100), [values])
    strided = torch.randn(9, 40, dtype=torch.float64).t()
    expected = reference.byte_dropout(strided, draws, 100)
    torch.testing.assert_close(ops.byte_dropout(strided, draws, 100), expected)


def test_nan_stays_nan_on_cpu():
    values = torch.full((100,), math.nan)
    assert ops.byte_dropout(values, drawn(100), 128).isnan().all()


def test_what_does_not_fit_together_is_refused():
    values = torch.ones(10)
    with pytest.raises(RuntimeError, match="draws must have 10 elements, it has 9"):
        ops.byte_dropout(values, drawn(9), 3)
    with pytest.raises(RuntimeError, match="draws has the wrong type"):
        ops.byte_dropout(values, torch.ones(10), 3)
    with pytest.raises(RuntimeError, match="dropped_levels must be 0 to 255"):
        ops.byte_dropout(values, drawn(10), 256)
