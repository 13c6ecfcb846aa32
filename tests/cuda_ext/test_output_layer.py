# SPDX-License-Identifier: Apache-2.0
"""A linear layer with one output and its loss, on the emulator and on a GPU."""

import math

import pytest
import torch
from torch.nn import functional as F

from cuda_ext import ops, reference
from tests.cuda_ext.conftest import randn, spread
from tests.tools import needs

SIZES = [(127, 8), (300, 1000), (0, 5), (130, 17), (1025, 40), (256, 256), (1, 1), (5, 3), (9, 512)]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def assert_sums(result, expected, magnitude):
    """Sums of float32 in another order, next to the sum of what they add."""
    assert result.dtype == expected.dtype
    epsilon = torch.finfo(expected.dtype).eps
    assert bool(((result - expected).abs() <= 64 * epsilon * (magnitude + 1e-30)).all())


@pytest.mark.parametrize(("size", "dtype"), spread(SIZES, FLOATS), ids=str)
def test_output_equals_the_reference(device_backend, size, dtype):
    x, weight = randn(*size, dtype=dtype), randn(1, size[1], seed=1, dtype=dtype)
    bias = randn(1, seed=2, dtype=dtype)
    output = device_backend.run("output_layer", x, weight, bias)
    magnitude = reference.output_layer(x.abs(), weight.abs(), bias.abs())
    assert_sums(output, reference.output_layer(x, weight, bias), magnitude)


@pytest.mark.parametrize(("size", "dtype", "relu"), spread(SIZES, FLOATS, [False, True]), ids=str)
def test_gradients_equal_the_reference(device_backend, size, dtype, relu):
    x, weight = randn(*size, dtype=dtype), randn(1, size[1], seed=1, dtype=dtype)
    x = torch.relu(x) if relu else x
    gradient = randn(size[0], 1, seed=2)
    delta, sums = device_backend.run("output_layer_backward", gradient, x, weight, relu)
    expected, of_columns = reference.output_layer_backward(gradient, x, weight, relu)
    assert torch.equal(delta, expected)
    _, magnitude = reference.output_layer_backward(gradient.abs(), x.abs(), weight.abs(), relu)
    assert_sums(sums, of_columns, magnitude)


def test_rows_that_are_not_aligned(device_backend):
    x, weight = (randn(n + 1, seed=n)[1:] for n in (4 * 24, 24))
    x, weight, gradient = x.view(4, 24), weight.view(1, 24), randn(4, 1, seed=3)
    output = device_backend.run("output_layer", x, weight, torch.zeros(1))
    torch.testing.assert_close(output, x @ weight.t())
    delta, _ = device_backend.run("output_layer_backward", gradient, x, weight, False)
    assert torch.equal(delta, gradient * weight)


def test_a_nan_stays_one(device_backend):
    x = torch.zeros(3, 16)
    x[1, 2] = torch.nan
    weight, gradient = torch.ones(1, 16), torch.ones(3, 1)
    output = device_backend.run("output_layer", x, weight, torch.ones(1))
    assert output.isnan().flatten().tolist() == [False, True, False]
    delta, sums = device_backend.run("output_layer_backward", gradient, x, weight, True)
    assert delta[1, 2] == 1
    assert delta.count_nonzero() == 1
    assert sums.isnan().nonzero().tolist() == [[16 + 2]]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("output_layer", (randn(4, 8), randn(1, 7), randn(1))),
        ("output_layer", (randn(4, 8), randn(1, 8), randn(2))),
        ("output_layer", (randn(4, 8), randn(1, 8).half(), randn(1))),
        ("output_layer", (randn(8, 4).t(), randn(1, 8), randn(1))),
        ("output_layer", (randn(8), randn(1, 8), randn(1))),
        (
            "output_layer_backward",
            (randn(4, 1).half(), *[randn(n, 8).half() for n in (4, 1)], False),
        ),
        ("output_layer_backward", (randn(3, 1), randn(4, 8), randn(1, 8), False)),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(device_backend, op, arguments):
    with pytest.raises(RuntimeError, match=f"{op}: "):
        device_backend.run(op, *arguments)


@pytest.mark.parametrize("size", [0, 1, 31, 1024, 1025, 5000])
def test_cross_entropy_equals_the_reference(device_backend, size):
    logits, labels = 3 * randn(size), (randn(size, seed=1) > 0).float()
    loss, gradient = device_backend.run("cross_entropy", logits, labels, 0.25)
    exact, of_logits = reference.cross_entropy(logits.double(), labels.double(), 0.25)
    torch.testing.assert_close(loss, exact.float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, of_logits.float(), rtol=1e-6, atol=1e-7)


def test_cross_entropy_of_large_logits(device_backend):
    logits = torch.tensor([100.0, -100.0, 3e38, -3e38, 0.0, math.inf, -math.inf])
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    for i in range(5):
        loss, gradient = device_backend.run("cross_entropy", logits[[i]], labels[[i]], 1.0)
        exact = F.binary_cross_entropy_with_logits(logits[[i]].double(), labels[[i]].double())
        torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=1e-30)
        torch.testing.assert_close(gradient[0], torch.sigmoid(logits[i]) - labels[i])
    for i in (5, 6):  # as in torch: infinity times the label
        loss, gradient = device_backend.run("cross_entropy", logits[[i]], labels[[i]], 1.0)
        assert loss.isnan()
        assert gradient == 0


def test_a_loss_of_nan_is_nan(device_backend):
    logits = torch.tensor([0.0, math.nan, 1.0])
    loss, gradient = device_backend.run("cross_entropy", logits, torch.ones(3), 1.0)
    assert loss.isnan()
    assert gradient.isnan().tolist() == [False, True, False]


def test_sums_do_not_depend_on_the_order_of_threads(device_backend):
    x, gradient, weight = randn(1000, 40), randn(1000, 1, seed=1), randn(1, 40, seed=2)
    labels = (gradient > 0).float().flatten()
    run = device_backend.run
    device_backend.check_order(
        lambda: [
            *run("output_layer_backward", gradient, x, weight, True),
            *run("cross_entropy", gradient.flatten(), labels, 1.0),
        ]
    )


@pytest.mark.gpu
@needs("CUDA device")
@pytest.mark.parametrize("num_samples", [None, 1000])
def test_the_loss_of_a_gpu_equals_torch(num_samples):
    logits, labels = randn(300), (randn(300, seed=1) > 0).float()
    here = logits.clone().requires_grad_()
    there = logits.cuda().requires_grad_()
    expected = ops.binary_cross_entropy(here, labels, num_samples)
    loss = ops.binary_cross_entropy(there, labels.cuda(), num_samples)
    (3 * expected).backward()
    (3 * loss).backward()
    torch.testing.assert_close(loss.cpu(), expected)
    torch.testing.assert_close(there.grad.cpu(), here.grad)
