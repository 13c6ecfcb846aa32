# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch.nn import functional as F

from bert4rec.nn.cpu.row_softmax import RowBlockedCrossEntropy, rows_per_block

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


def errors(found, exact):
    return [
        float((f.detach().double() - e.detach()).abs().max())
        for f, e in zip(found, exact, strict=True)
    ]


@pytest.mark.parametrize("rows", [1, 7, 32, 70])
def test_no_less_exact_than_plain_torch(rows):
    single, labels = problem(torch.float32)
    double = [t.detach().double().requires_grad_() for t in single]
    loss = plain(double, labels)
    exact = [loss, *torch.autograd.grad(loss * 5, double)]
    loss = plain(single, labels)
    usual = errors([loss, *torch.autograd.grad(loss * 5, single)], exact)
    loss = RowBlockedCrossEntropy.apply(*single, labels, rows)
    mine = errors([loss, *torch.autograd.grad(loss * 5, single)], exact)
    for error, other, truth in zip(mine, usual, exact, strict=True):
        assert error <= 2 * other + 1e-7 * max(float(truth.detach().abs().max()), 1.0)


def test_large_logits_neither_overflow_nor_vanish():
    (hidden, weight, bias), labels = problem(torch.float32)
    inputs = [(hidden * 100).detach().requires_grad_(), weight, bias]
    loss = RowBlockedCrossEntropy.apply(*inputs, labels, 16)
    torch.testing.assert_close(loss, plain(inputs, labels), rtol=1e-5, atol=1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("rows", [7, 70])
def test_products_follow_autocast_and_gradients_the_parameters(rows):
    inputs, labels = problem(torch.float32)
    exact = torch.autograd.grad(plain(inputs, labels), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        usual = torch.autograd.grad(plain(inputs, labels), inputs)
        loss = RowBlockedCrossEntropy.apply(*inputs, labels, rows)
    assert loss.dtype == torch.float32
    mine = torch.autograd.grad(loss, inputs)
    assert [g.dtype for g in mine] == [t.dtype for t in inputs]
    for error, other in zip(errors(mine, exact), errors(usual, exact), strict=True):
        assert error <= 2 * other
    assert max(errors(mine, exact)) > 1e-5, "nothing was computed in bfloat16"


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
        (11_000, 1_682, 1 << 24, (1 << 18) // 1_682),
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
