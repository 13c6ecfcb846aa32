# SPDX-License-Identifier: Apache-2.0
"""Linear layers with ReLU as a GPU runs them: the backward of a ReLU, products, perceptrons."""

import itertools
import sys
from types import SimpleNamespace

import pytest
import torch

from cuda_ext import error_bounds, ops, reference
from cuda_ext.ops.linear import _DevicePerceptron
from tests.cuda_ext.conftest import plain_mlp, randn, spread
from tests.tools import needs, require

LINEAR = sys.modules[_DevicePerceptron.__module__]
SIZES = [(0, 5), (1, 1), (5, 3), (127, 8), (130, 17), (256, 64), (300, 300), (1000, 40)]


@pytest.mark.parametrize(
    ("size", "dtype"),
    spread(SIZES, [torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    ids=str,
)
def test_relu_backward_equals_its_definition(backend, size, dtype):
    dtype = backend.taken(dtype)
    gradient = randn(*size, dtype=dtype)
    output = torch.relu(randn(*size, seed=1, dtype=dtype))
    transpose = backend.name == "cpu"
    delta, transposed, sums = backend.run("relu_backward", gradient, output, transpose)
    expected = reference.relu_backward(gradient, output, transpose)
    assert torch.equal(delta, expected[0])
    assert torch.equal(transposed, expected[1])
    assert sums.dtype == expected[2].dtype
    torch.testing.assert_close(sums, expected[2], rtol=1e-5, atol=1e-4)


def test_relu_backward_of_rows_that_are_not_aligned(backend):
    gradient, output = (randn(4 * 24 + 1, seed=i)[1:].view(4, 24) for i in range(2))
    delta, _, sums = backend.run("relu_backward", gradient, output, False)
    expected, _, total = reference.relu_backward(gradient, output, False)
    assert torch.equal(delta, expected)
    torch.testing.assert_close(sums, total)


def test_relu_backward_keeps_gradients_behind_a_nan(backend):
    gradient = randn(3, 16)
    output = torch.zeros(3, 16)
    output[1, 2] = torch.nan
    delta, _, sums = backend.run("relu_backward", gradient, output, False)
    assert delta[1, 2] == gradient[1, 2] == sums[2]
    assert delta.count_nonzero() == 1


def test_relu_backward_refuses_what_does_not_fit_together(backend):
    gradient = randn(4, 3)
    for output in (randn(4, 2), randn(3, 4).t(), randn(4, 3).double()):
        with pytest.raises(RuntimeError, match="relu_backward: "):
            backend.run("relu_backward", gradient, output, False)


def test_relu_backward_transposes_on_a_cpu_alone(backend):
    gradient, output = randn(4, 3), torch.ones(4, 3)
    if backend.name == "cpu":
        _, transposed, _ = backend.run("relu_backward", gradient, output, True)
        assert torch.equal(transposed, gradient.t())
        return
    with pytest.raises(RuntimeError, match="the transpose is made on a CPU alone"):
        backend.run("relu_backward", gradient, output, True)


def has_product(*widths):
    """cuBLASLt has none where rows are no whole vectors."""
    return all(width % 8 == 0 for width in widths)


def linear_relu(x, weight, bias, _allow_tf32):
    if not has_product(x.shape[1], len(weight)):
        return x.new_empty(0, len(weight)), x.new_empty(0)
    output = torch.relu(torch.nn.functional.linear(x, weight, bias))
    return output, output > 0


def linear_relu_backward(gradient, weight, mask, _allow_tf32):
    if not has_product(*weight.shape):
        return gradient.new_empty(0, weight.shape[1]), gradient.new_empty(0)
    before = gradient @ weight * mask
    return before, before.sum(0)


@pytest.fixture
def on_the_emulator(emulated, monkeypatch):
    """Has the layers of a GPU run on a CPU, and counts the products."""
    calls = []

    def counted(run):
        def call(*arguments):
            result = run(*arguments)
            calls.append(len(result[0]) > 0)
            return result

        return call

    kernels = SimpleNamespace(
        has_relu_products=lambda: True,
        linear_relu=counted(linear_relu),
        linear_relu_backward=counted(linear_relu_backward),
        relu_backward=torch.ops.cuda_ext.relu_backward,
        output_layer=emulated.ops.output_layer,
        output_layer_backward=emulated.ops.output_layer_backward,
    )
    monkeypatch.setattr(LINEAR, "kernels", kernels)
    return calls


def make_layers(sizes, dtype):
    return [
        (
            randn(after, before, seed=i, dtype=dtype).requires_grad_(),
            randn(after, seed=i + 9, dtype=dtype).requires_grad_(),
        )
        for i, (before, after) in enumerate(itertools.pairwise(sizes))
    ]


needs_kernels = needs("compiled cuda_ext kernels")


@needs_kernels
@pytest.mark.parametrize("final_relu", [False, True])
@pytest.mark.parametrize(
    ("sizes", "products"),
    [([16, 32, 8], 2), ([16, 64, 32, 1], 3), ([13, 17, 8], 0), ([8, 16], 0), ([13, 1], 0)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_perceptron_equals_its_layers(on_the_emulator, dtype, sizes, products, final_relu):
    """Also where the library lacks products: rows of 17, a last layer of one output."""
    layers = make_layers(sizes, dtype)
    x = randn(40, sizes[0], seed=5, dtype=dtype).requires_grad_()
    flat = [tensor for layer in layers for tensor in layer]
    own = [tensor.detach() for tensor in flat]
    ours = _DevicePerceptron.apply(x, final_relu, *flat, *own)
    theirs = plain_mlp(x, layers, final_relu)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    gradient = randn(*theirs.shape, seed=6, dtype=dtype)
    for mine, expected in zip(
        torch.autograd.grad(ours, [x, *flat], gradient),
        torch.autograd.grad(theirs, [x, *flat], gradient),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-4)
    assert sum(on_the_emulator) == products


@needs_kernels
def test_a_perceptron_leaves_out_what_is_frozen(on_the_emulator):
    layers = make_layers([16, 32, 8], torch.float32)
    (weight, _), (_, bias) = layers
    for frozen in (weight, bias):
        frozen.requires_grad_(False)
    flat = [tensor for layer in layers for tensor in layer]
    _DevicePerceptron.apply(
        randn(40, 16), False, *flat, *map(torch.Tensor.detach, flat)
    ).sum().backward()
    assert [tensor.grad is None for tensor in flat] == [True, False, False, True]


@pytest.fixture
def on_this_gpu():
    """Puts tensors on a GPU."""
    require("CUDA device")
    return lambda *tensors: [tensor.cuda() for tensor in tensors]


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(300, 64, 256, 64), (1000, 480, 1024, 512), (64, 16, 512, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_are_exact_to_the_bound_of_a_sum(on_this_gpu, dtype, sizes):
    rows, inputs, columns, outputs = sizes
    x, weight = randn(rows, inputs, dtype=dtype), randn(columns, inputs, seed=1, dtype=dtype)
    # Positive and negative sums by their bias, far from zero: rounding changes no ReLU.
    bias = 100 * torch.where(torch.arange(columns) % 2 == 0, 1.0, -1.0).to(dtype)
    output, mask = torch.ops.cuda_ext.linear_relu(*on_this_gpu(x, weight, bias), False)
    sums, magnitudes = (
        kind(x.double()) @ kind(weight.double()).t() + kind(bias.double())
        for kind in (torch.Tensor.clone, torch.abs)
    )
    bound = error_bounds.sum_of_products(sums.relu(), magnitudes, inputs + 1, dtype)
    assert bound.excess(output.cpu()) <= 1

    gradient, after = randn(rows, outputs, seed=2), randn(outputs, columns, seed=3)
    gradient, after = gradient.to(dtype), after.to(dtype)
    delta, of_bias = torch.ops.cuda_ext.linear_relu_backward(
        *on_this_gpu(gradient, after), mask, False
    )
    products, magnitudes = (
        kind(gradient.double()) @ kind(after.double()) * (sums > 0)
        for kind in (torch.Tensor.clone, torch.abs)
    )
    bound = error_bounds.sum_of_products(products, magnitudes, outputs, dtype)
    assert bound.excess(delta.cpu()) <= 1
    # The library adds what it has rounded.
    assert bound.sum(0).rounded(dtype)[0].excess(of_bias.cpu()) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_nan_stays_one(on_this_gpu, dtype):
    x = torch.zeros(8, 8)
    x[1, 2] = torch.nan
    tensors = on_this_gpu(*(t.to(dtype) for t in (x, torch.eye(8), torch.ones(8))))
    output, _ = torch.ops.cuda_ext.linear_relu(*tensors, False)
    assert output.isnan().any(1).tolist() == [row == 1 for row in range(8)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tensors",
    [
        (randn(4, 16), randn(8, 24), randn(8)),
        (randn(4, 16), randn(8, 16), randn(7)),
        (randn(4, 16), randn(8, 16).double(), randn(8)),
        (randn(4, 16), randn(8, 16), randn(8).half()),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(on_this_gpu, tensors):
    with pytest.raises(RuntimeError, match="linear_relu: "):
        torch.ops.cuda_ext.linear_relu(*on_this_gpu(*tensors), False)


@pytest.mark.gpu
@needs("CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_perceptron_on_this_gpu_is_near_its_layers(dtype):
    layers = [
        tuple(t.detach().cuda().requires_grad_() for t in layer)
        for layer in make_layers([13, 512, 256, 128], torch.float32)
    ]
    x = randn(4096, 13).cuda()
    flat = [tensor for layer in layers for tensor in layer]
    with torch.autocast("cuda", dtype=dtype):
        ours = ops.perceptron(x, layers, final_relu=True)
    exact = plain_mlp(x.double(), [tuple(t.double() for t in layer) for layer in layers], True)
    assert ours.dtype == dtype
    scale = exact.abs().mean()
    assert (ours.double() - exact).abs().mean() < 0.02 * scale
    mine = torch.autograd.grad(ours.float().square().mean(), flat)
    expected = torch.autograd.grad(exact.square().mean(), flat)
    for own, true in zip(mine, expected, strict=True):
        assert own.dtype == torch.float32
        assert (own - true).norm() < 0.05 * true.norm()
