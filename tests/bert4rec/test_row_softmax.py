# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch.nn import functional as F

from bert4rec.nn.row_softmax import RowBlockedCrossEntropy, rows_per_block
from cuda_ext.error_bounds import Bounded

CPU = torch.device("cpu")


def problem(dtype, targets=70, items=41, dim=8):
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    labels = torch.randint(0, items, (targets,), generator=generator)
    leaves = [draw(targets, dim) * 3, draw(items, dim), draw(items)]
    return [t.to(dtype).requires_grad_() for t in leaves], labels


def plain(inputs, labels):
    hidden, weight, bias = inputs
    return F.cross_entropy(F.linear(hidden, weight, bias), labels)


def bounds(inputs, labels, factor, products=torch.float32):
    """Bounds the loss and the gradients of a multiple of it.

    Args:
        inputs: vectors, weight and bias.
        labels: of the targets.
        factor: what the loss is multiplied with.
        products: type of the factors of matrix products, and of the results.
    """

    def narrow(tensor):
        return tensor if products == torch.float32 else tensor.rounded(products)

    hidden, weight, bias = (Bounded.exact(tensor.detach()) for tensor in inputs)
    hidden, weight = narrow(hidden), narrow(weight)
    one_hot = Bounded.exact(F.one_hot(labels, len(weight.value)))
    logits = narrow(hidden @ weight.t()) + bias
    top = Bounded.exact(logits.value.amax(1, keepdim=True))
    powers = (logits - top).exp()
    total = powers.sum(1)
    losses = total.log() + top - (logits * one_hot).sum(1)
    delta = (powers / total - one_hot) * (1 / len(labels))
    to_logits = narrow(delta)
    gradients = (
        narrow(to_logits @ weight),
        narrow(to_logits.t() @ hidden),
        delta.sum(0).reshape(-1),
    )
    return [losses.mean(0).reshape(), *(gradient * factor for gradient in gradients)]


@pytest.mark.parametrize("rows", [1, 7, 32, 70])
def test_exact_to_the_bounds_of_its_sums(rows):
    inputs, labels = problem(torch.float32)
    double = [t.detach().double().requires_grad_() for t in inputs]
    truth = plain(double, labels)
    truths = [truth.detach(), *torch.autograd.grad(truth * 5, double)]
    loss = RowBlockedCrossEntropy.apply(*inputs, labels, rows)
    results = [loss.detach(), *torch.autograd.grad(loss * 5, inputs)]
    for result, exact, bound in zip(results, truths, bounds(inputs, labels, 5.0), strict=True):
        torch.testing.assert_close(bound.value, exact, rtol=1e-9, atol=1e-12)
        assert bound.excess(result) <= 1


def test_large_logits_neither_overflow_nor_vanish():
    (hidden, weight, bias), labels = problem(torch.float32)
    inputs = [(hidden * 100).detach().requires_grad_(), weight, bias]
    loss = RowBlockedCrossEntropy.apply(*inputs, labels, 16)
    torch.testing.assert_close(loss, plain(inputs, labels), rtol=1e-5, atol=1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("rows", [7, 70])
def test_products_follow_autocast_and_gradients_the_parameters(rows):
    inputs, labels = problem(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = RowBlockedCrossEntropy.apply(*inputs, labels, rows)
    assert loss.dtype == torch.float32
    results = [loss.detach(), *torch.autograd.grad(loss, inputs)]
    assert [g.dtype for g in results[1:]] == [t.dtype for t in inputs]
    for result, bound in zip(results, bounds(inputs, labels, 1.0, torch.bfloat16), strict=True):
        assert bound.excess(result) <= 1
    single = bounds(inputs, labels, 1.0)
    assert single[1].excess(results[1]) > 100, "nothing was computed in bfloat16"


def test_the_same_bits_again():
    found = []
    for _ in range(2):
        inputs, labels = problem(torch.float32)
        loss = RowBlockedCrossEntropy.apply(*inputs, labels, 32)
        found.append([loss.detach(), *torch.autograd.grad(loss, inputs)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_evaluation_makes_no_gradients():
    inputs, labels = problem(torch.float32)
    with torch.no_grad():
        loss = RowBlockedCrossEntropy.apply(*inputs, labels, 32)
    assert not loss.requires_grad


@pytest.mark.parametrize(
    ("targets", "items", "bound", "expected"),
    [
        (11_000, 1_682, 1 << 24, 128),
        (20, 500_000, 1 << 24, 20),
        (900, 500_000, 1 << 24, 32),
        (900, 600_000, 1 << 24, 0),  # 32 rows would not fit: the items have to be split
        (5, 37, 6, 0),
    ],
)
def test_blocks_fit_the_bound(targets, items, bound, expected):
    rows = rows_per_block(targets, items, bound, CPU)
    assert rows == expected
    assert rows * items <= bound
