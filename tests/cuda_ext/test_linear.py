# SPDX-License-Identifier: Apache-2.0
"""The backward of a ReLU on every backend, and the linear layer of a GPU against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from cuda_ext import reference
from cuda_ext.ops.linear import _DevicePerceptron
from tests.cuda_ext.conftest import spread
from tests.tools import needs

SIZES = [(0, 5), (1, 1), (5, 3), (127, 8), (130, 17), (256, 64), (300, 300), (1000, 40)]


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


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


needs_kernels = needs("compiled cuda_ext kernels")


@needs_kernels
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 8), (13, 32), (5, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_linear_layer_of_a_gpu_equals_torch(dtype, inputs, outputs, relu):
    """Its products, padding and gradients, on a CPU; on a GPU they run in half precision too."""
    x, weight, bias = (
        randn(*shape, seed=i, dtype=dtype).requires_grad_()
        for i, shape in enumerate([(64, inputs), (outputs, inputs), (outputs,)])
    )
    ours = _DevicePerceptron.apply(x, relu, weight, bias, weight.detach(), bias.detach())
    theirs = F.linear(x, weight, bias)
    theirs = torch.relu(theirs) if relu else theirs
    torch.testing.assert_close(ours, theirs)
    gradient = randn(64, outputs, seed=9, dtype=dtype)
    for own, expected in zip(
        torch.autograd.grad(ours, [x, weight, bias], gradient),
        torch.autograd.grad(theirs, [x, weight, bias], gradient),
        strict=True,
    ):
        torch.testing.assert_close(own, expected)


@needs_kernels
@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_the_linear_layer_of_a_gpu_leaves_out_what_is_frozen(frozen):
    tensors = {"x": randn(64, 16), "weight": randn(8, 16), "bias": randn(8)}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name != frozen)
    x, weight, bias = tensors.values()
    own = weight.detach(), bias.detach()
    _DevicePerceptron.apply(x, True, weight, bias, *own).sum().backward()
    assert [name for name, tensor in tensors.items() if tensor.grad is None] == [frozen]
