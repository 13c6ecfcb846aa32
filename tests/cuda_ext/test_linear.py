# SPDX-License-Identifier: Apache-2.0
"""Linear layers with ReLU as a GPU runs them: the backward of a ReLU, products, perceptrons."""

import itertools
import sys
from types import SimpleNamespace

import pytest
import torch

from cuda_ext import ops, reference
from cuda_ext.ops.linear import _DevicePerceptron
from tests.cuda_ext.conftest import plain_mlp, randn, spread
from tests.harness import refusal
from tests.tools import needs

LINEAR = sys.modules[_DevicePerceptron.__module__]
SIZES = [(0, 5), (1, 1), (5, 3), (127, 8), (130, 17), (256, 64), (300, 300), (1000, 40)]


@pytest.mark.parametrize(
    ("size", "dtype"),
    spread(SIZES, [torch.float32, torch.bfloat16, torch.float16]),
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
    with refusal("transpose", "CPU", kind=RuntimeError):
        backend.run("relu_backward", gradient, output, True)


@pytest.fixture
def on_the_emulator(emulated, monkeypatch):
    """Has the layers of a GPU run on a CPU."""
    kernels = SimpleNamespace(
        relu_backward=torch.ops.cuda_ext.relu_backward,
        output_layer=emulated.ops.output_layer,
        output_layer_backward=emulated.ops.output_layer_backward,
    )
    monkeypatch.setattr(LINEAR, "kernels", kernels)


def make_layers(sizes):
    return [
        (
            randn(after, before, seed=i).requires_grad_(),
            randn(after, seed=i + 9).requires_grad_(),
        )
        for i, (before, after) in enumerate(itertools.pairwise(sizes))
    ]


needs_kernels = needs("compiled cuda_ext kernels")


@needs_kernels
@pytest.mark.parametrize("final_relu", [False, True])
@pytest.mark.parametrize("sizes", [[16, 32, 8], [16, 64, 32, 1], [13, 17, 8], [8, 16], [13, 1]])
@pytest.mark.usefixtures("on_the_emulator")
def test_a_perceptron_equals_its_layers(sizes, final_relu):
    layers = make_layers(sizes)
    x = randn(40, sizes[0], seed=5).requires_grad_()
    flat = [tensor for layer in layers for tensor in layer]
    own = [tensor.detach() for tensor in flat]
    ours = _DevicePerceptron.apply(x, final_relu, *flat, *own)
    theirs = plain_mlp(x, layers, final_relu)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    gradient = randn(*theirs.shape, seed=6)
    for mine, expected in zip(
        torch.autograd.grad(ours, [x, *flat], gradient),
        torch.autograd.grad(theirs, [x, *flat], gradient),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-4)


@needs_kernels
@pytest.mark.usefixtures("on_the_emulator")
def test_a_perceptron_leaves_out_what_is_frozen():
    layers = make_layers([16, 32, 8])
    (weight, _), (_, bias) = layers
    for frozen in (weight, bias):
        frozen.requires_grad_(False)
    flat = [tensor for layer in layers for tensor in layer]
    _DevicePerceptron.apply(
        randn(40, 16), False, *flat, *map(torch.Tensor.detach, flat)
    ).sum().backward()
    assert [tensor.grad is None for tensor in flat] == [True, False, False, True]


@pytest.mark.gpu
@needs("CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_perceptron_on_this_gpu_keeps_a_nan(dtype):
    x = torch.zeros(8, 8)
    x[1, 2] = torch.nan
    x, weight, bias = (t.to("cuda", dtype) for t in (x, torch.eye(8), torch.ones(8)))
    layers = [(weight.requires_grad_(), bias.requires_grad_())] * 2
    output = ops.perceptron(x, layers, final_relu=True)
    assert output.isnan().any(1).tolist() == [row == 1 for row in range(8)]


@pytest.mark.gpu
@needs("CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_perceptron_on_this_gpu_is_near_its_layers(dtype):
    layers = [
        tuple(t.detach().cuda().requires_grad_() for t in layer)
        for layer in make_layers([13, 512, 256, 128])
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
