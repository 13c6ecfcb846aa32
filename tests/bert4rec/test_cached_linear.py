# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bert4rec.nn.cpu import cached_linear
from bert4rec.nn.cpu.cached_linear import feed_forward, linear

ROWS = cached_linear._ROWS
COUNTS = [1, 2 * ROWS, 2 * ROWS + 1, 3 * ROWS]


def layers(dtype):
    torch.manual_seed(2)
    return nn.Linear(8, 24).to(dtype), nn.Linear(24, 8).to(dtype)


def tokens_of(count, dtype):
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randn(count, 8, generator=generator, dtype=torch.float64)
    return drawn.to(dtype).requires_grad_()


def plain(tokens, expand, contract, activation):
    act = F.gelu if activation == "gelu" else F.relu
    return contract(act(expand(tokens)))


def outcomes(function, count, dtype):
    """Returns a function's result and the gradients of its sum of squares."""
    expand, contract = layers(dtype)
    tokens = tokens_of(count, dtype)
    found = function(tokens, expand, contract)
    inputs = [tokens, *expand.parameters(), *contract.parameters()]
    gradients = torch.autograd.grad(found.square().sum(), inputs, allow_unused=True)
    return [found.detach(), *(g for g in gradients if g is not None)]


def largest_errors(found, exact):
    return [float((f.double() - e).abs().max()) for f, e in zip(found, exact, strict=True)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_feed_forward_is_as_exact_as_plain_layers(count, activation):
    usual = lambda t, e, c: plain(t, e, c, activation)  # noqa: E731
    blocked = lambda t, e, c: feed_forward(t, e, c, activation)  # noqa: E731
    exact = outcomes(usual, count, torch.float64)
    theirs = largest_errors(outcomes(usual, count, torch.float32), exact)
    mine = largest_errors(outcomes(blocked, count, torch.float32), exact)
    for error, other, truth in zip(mine, theirs, exact, strict=True):
        assert error <= 2 * other + 1e-7 * float(truth.abs().max())


@pytest.mark.parametrize("count", COUNTS)
def test_linear_is_as_exact_as_a_plain_layer(count):
    usual = lambda t, e, _: e(t)  # noqa: E731
    blocked = lambda t, e, _: linear(t, e.weight, e.bias)  # noqa: E731
    exact = outcomes(usual, count, torch.float64)
    theirs = largest_errors(outcomes(usual, count, torch.float32), exact)
    mine = largest_errors(outcomes(blocked, count, torch.float32), exact)
    for error, other, truth in zip(mine, theirs, exact, strict=True):
        assert error <= 2 * other + 1e-7 * float(truth.abs().max())


def test_many_tokens_do_go_through_blocks(monkeypatch):
    seen = []
    blocks = cached_linear._blocks
    monkeypatch.setattr(cached_linear, "_blocks", lambda *t: seen.append(len(t)) or blocks(*t))
    outcomes(lambda t, e, c: feed_forward(t, e, c, "gelu"), 2 * ROWS, torch.float32)
    assert not seen
    outcomes(lambda t, e, c: feed_forward(t, e, c, "gelu"), 2 * ROWS + 1, torch.float32)
    assert seen == [3, 4]


def test_autocast_takes_its_own_layers():
    expand, contract = layers(torch.float32)
    tokens = tokens_of(2 * ROWS + 1, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert feed_forward(tokens, expand, contract, "gelu").dtype == torch.bfloat16
        assert linear(tokens, expand.weight, expand.bias).dtype == torch.bfloat16
