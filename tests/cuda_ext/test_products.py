# SPDX-License-Identifier: Apache-2.0
"""Products and linear layers by oneDNN against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from cuda_ext import ops
from cuda_ext.ops import products
from tests.cuda_ext.conftest import randn, spread
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

SIZES = [(1100, 31, 33), (1025, 64, 17), (2048, 13, 64), (64, 512, 256), (320, 257, 129)]
"""Samples, inputs and outputs; each product has enough operations for oneDNN."""


@pytest.fixture
def with_onednn(monkeypatch):
    """Takes oneDNN on any processor, and counts its calls."""
    calls = []
    call = products._onednn_linear

    def counted(*arguments, **options):
        calls.append(arguments)
        return call(*arguments, **options)

    monkeypatch.setattr(products, "has_wider_products", lambda: True)
    monkeypatch.setattr(products, "_onednn_linear", counted)
    return calls


def layer(inputs, outputs):
    weight = (randn(outputs, inputs, seed=1) / inputs**0.5).requires_grad_()
    return weight, randn(outputs, seed=2).requires_grad_()


@pytest.mark.parametrize(
    ("size", "with_bias", "relu"), spread(SIZES, [False, True], [False, True]), ids=str
)
def test_linear_on_cpu_equals_torchs_own(size, with_bias, relu, with_onednn):
    samples, inputs, outputs = size
    weight, bias = layer(inputs, outputs)
    x = randn(samples, inputs).requires_grad_()
    tensors = [x, weight, bias] if with_bias else [x, weight]
    result = ops.linear(*tensors, relu=relu)
    exact = F.linear(*(t.double() for t in tensors))
    exact = torch.relu(exact) if relu else exact
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)
    gradient = randn(*result.shape, seed=3)
    gradients = torch.autograd.grad(result, tensors, gradient)
    expected = torch.autograd.grad(exact, tensors, gradient.double())
    assert len(with_onednn) >= 2  # and our own sum, for many samples
    for actual, wanted in zip(gradients, expected, strict=True):
        assert actual.dtype == torch.float32
        # A rounded zero of a ReLU may be on its other side.
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(ops.linear(*tensors, relu=relu), result, rtol=0, atol=0)


def test_only_gradients_that_are_asked_for_are_computed(with_onednn):
    weight, bias = layer(64, 128)
    x = randn(320, 64)
    ops.linear(x, weight, bias, relu=True).sum().backward()
    assert len(with_onednn) == 2  # forward, and the weights' gradient
    frozen = weight.detach()
    x.requires_grad_()
    ops.linear(x, frozen, None).sum().backward()
    assert len(with_onednn) == 4
    assert x.grad is not None


@pytest.mark.parametrize("rows", [640, 2048])
def test_gradients_without_strides_are_summed(rows, with_onednn):
    """The gradient of a sum is one number seen as a matrix."""
    weight, bias = layer(64, 96)
    x = randn(rows, 64).requires_grad_()
    ops.linear(x, weight, bias).sum().backward()
    expected = x.detach().sum(0).expand(96, 64)
    torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(bias.grad, torch.full((96,), float(rows)))
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand(rows, 64))
    assert with_onednn


def test_products_take_any_strides(with_onednn):
    a, b = randn(1280, 90), randn(90, 70, seed=1)
    for left, right in ((a, b), (a, b.t().contiguous().t()), (a.t().contiguous().t(), b)):
        torch.testing.assert_close(ops.product(left, right), a @ b, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ops.product(a[::2], b), (a @ b)[::2], rtol=1e-5, atol=1e-4)
    out = torch.empty(1280, 140)[:, ::2]
    assert ops.product(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-4)
    assert len(with_onednn) == 5
    torch.testing.assert_close(ops.product(a[:1], b), a[:1] @ b, rtol=1e-5, atol=1e-4)
    assert len(with_onednn) == 5


def test_transposed_products_are_added_up(with_onednn):
    sizes = [(700, 90, 30), (640, 90, 30), (640, 90, 200), (320, 90, 200), (320, 90, 60)]
    for rows, columns, others in [*sizes, (300, 90, 200), (63, 300, 200)]:
        a, b = randn(rows, columns), randn(rows, others, seed=2)
        expected = a.t() @ b
        torch.testing.assert_close(ops.transposed_product(a, b), expected, rtol=1e-5, atol=1e-3)
        total = torch.ones(columns, others)
        ops.add_transposed_product(total, a, b)
        torch.testing.assert_close(total, 1 + expected, rtol=1e-5, atol=1e-3)
    # Of 700 rows and 30 columns MKL's, of 640 and 200 our own, of 300 and 63 MKL's.
    assert len(with_onednn) == 6


@pytest.mark.parametrize("rows", [1, 3, 320, 448, 1024, 5120])
def test_round_numbers_of_rows_are_one_call(rows):
    assert products.is_round(rows)


def test_few_sizes_reach_onednn(with_onednn):
    """Each size that it meets takes memory for ever."""
    weight, bias = layer(64, 96)
    for rows in range(200, 3000, 155):
        x = randn(rows, 64).requires_grad_()
        result = ops.linear(x, weight, bias, relu=True)
        torch.testing.assert_close(
            result, torch.relu(F.linear(x, weight, bias)), rtol=1e-5, atol=1e-5
        )
        result.sum().backward()
    assert len(with_onednn) > 25
    assert len({x.shape for x, *_ in with_onednn}) < 10


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_and_few_operations_stay_with_torch(dtype, with_onednn):
    weight, bias = (t.to(dtype) for t in layer(128, 128))
    x = randn(200, 128).to(dtype)
    assert torch.equal(ops.linear(x, weight, bias), F.linear(x, weight, bias))
    few = randn(3, 128)
    weight, bias = layer(128, 128)
    assert torch.equal(ops.linear(few, weight, bias), F.linear(few, weight, bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.linear(randn(200, 128), weight, bias).dtype == torch.bfloat16
    assert with_onednn == []


def test_nan_and_infinity_are_not_lost_in_the_relu(with_onednn):
    weight, bias = layer(64, 96)
    x = randn(320, 64)
    x[3, 5], x[4, 5] = float("nan"), float("inf")
    result = ops.linear(x, weight, bias, relu=True)
    assert len(with_onednn) == 1
    assert result[3].isnan().all()
    assert (result[4] == float("inf")).any()
    assert result[5:].isfinite().all()


@pytest.mark.parametrize(
    "size", [(0, 3, 8), (1, 1, 16), (5, 7, 24), (130, 17, 40), (5000, 33, 64)], ids=str
)
def test_transposed_product_on_cpu_equals_its_definition(size):
    rows, columns, others = size
    a, b = randn(rows, 2 * columns)[:, :columns], randn(rows, others, seed=1)  # of any distance
    found = torch.ops.cuda_ext.transposed_product(a, b)
    torch.testing.assert_close(found.double(), a.double().t() @ b.double(), rtol=1e-5, atol=1e-3)


def test_transposed_product_refuses_what_does_not_fit():
    call = torch.ops.cuda_ext.transposed_product
    for a, b in (
        (randn(4, 3), randn(5, 8)),
        (randn(4, 3), randn(4, 8).double()),
        (randn(3, 4).t(), randn(4, 8)),
        (randn(4, 3), randn(4, 7)),
        (randn(4, 3).half(), randn(4, 8).half()),
    ):
        with pytest.raises(RuntimeError, match="transposed_product: "):
            call(a, b)


def test_cpu_kernels_do_not_depend_on_threads(cpu_backend):
    gradient, output = randn(9000, 40), torch.relu(randn(9000, 40, seed=1))

    def run():
        delta, *rest = torch.ops.cuda_ext.relu_backward(gradient, output, True)
        return [delta, *rest, torch.ops.cuda_ext.transposed_product(delta, output)]

    cpu_backend.check_order(run)
