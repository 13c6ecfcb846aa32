# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bert4rec.nn.cpu import cached_linear
from bert4rec.nn.cpu.cached_linear import feed_forward, linear
from cuda_ext.error_bounds import Bounded

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


def outcomes(function, tokens, expand, contract):
    """Returns a function's result and the gradients of its sum of squares."""
    found = function(tokens, expand, contract)
    inputs = [tokens, *expand.parameters(), *contract.parameters()]
    gradients = torch.autograd.grad(found.square().sum(), inputs, allow_unused=True)
    return [found.detach(), *(g for g in gradients if g is not None)]


def integers(count, dtype):
    """Returns tokens and layers of small integers: float32 sums of their products are exact."""
    generator = torch.Generator().manual_seed(count)
    draw = lambda *shape: torch.randint(-2, 3, shape, generator=generator).to(dtype)  # noqa: E731
    pairs = (nn.Linear(8, 24).to(dtype), nn.Linear(24, 8).to(dtype))
    for layer in pairs:
        layer.weight.data, layer.bias.data = draw(*layer.weight.shape), draw(*layer.bias.shape)
    return draw(count, 8).requires_grad_(), *pairs


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("case", ["linear", "feed_forward"])
def test_blocks_of_integers_give_the_exact_result(case, count):
    if case == "linear":
        usual, blocked = (lambda t, e, _: e(t)), (lambda t, e, _: linear(t, e.weight, e.bias))
    else:
        usual = lambda t, e, c: plain(t, e, c, "relu")  # noqa: E731
        blocked = lambda t, e, c: feed_forward(t, e, c, "relu")  # noqa: E731
    exact = outcomes(usual, *integers(count, torch.float64))
    for result, truth in zip(
        outcomes(blocked, *integers(count, torch.float32)), exact, strict=True
    ):
        assert torch.equal(result.double(), truth)


def gelu_slope(x):
    density = (-0.5 * x * x).exp() / (2 * torch.pi) ** 0.5
    return (1 + torch.erf(x / 2**0.5)) / 2 + x * density


def feed_forward_bounds(tokens, expand, contract):
    """Bounds the result and the gradients of `outcomes`, with gelu between the layers.

    Its slope is below 1.13, and the slope of its slope below 0.8.
    """
    given = (tokens, expand.weight, expand.bias, contract.weight, contract.bias)
    t, first, first_bias, second, second_bias = (Bounded.exact(x.detach()) for x in given)
    between = t @ first.t() + first_bias
    size = between.value.abs()
    active = between.apply(F.gelu, 1.13, size)
    result = active @ second.t() + second_bias
    delta = result * 2.0
    inner = (delta @ second) * between.apply(gelu_slope, 0.8, 1 + size)
    to_first = inner.t() @ t, inner.sum(0).reshape(-1)
    return [
        *(result, inner @ first, *to_first),
        *(delta.t() @ active, delta.sum(0).reshape(-1)),
    ]


@pytest.mark.parametrize("count", COUNTS)
def test_feed_forward_is_exact_to_the_bounds_of_its_sums(count):
    inputs = tokens_of(count, torch.float32), *layers(torch.float32)
    blocked = outcomes(lambda t, e, c: feed_forward(t, e, c, "gelu"), *inputs)
    bounds = feed_forward_bounds(*inputs)
    tokens = inputs[0].detach().double().requires_grad_()
    truths = outcomes(lambda t, e, c: plain(t, e, c, "gelu"), tokens, *layers(torch.float64))
    for result, bound, truth in zip(blocked, bounds, truths, strict=True):
        torch.testing.assert_close(bound.value, truth, rtol=1e-9, atol=1e-9)
        assert bound.excess(result) <= 1


@pytest.mark.parametrize("count", COUNTS)
def test_swiglu_in_blocks_equals_plain_layers(count):
    torch.manual_seed(3)
    expand, contract = nn.Linear(8, 48).double(), nn.Linear(24, 8).double()

    def usual(tokens, expand, contract):
        gate, value = expand(tokens).chunk(2, 1)
        return contract(gate * torch.sigmoid(gate) * value)

    inputs = tokens_of(count, torch.float64), expand, contract
    blocked = outcomes(lambda t, e, c: feed_forward(t, e, c, "swiglu"), *inputs)
    for result, truth in zip(blocked, outcomes(usual, *inputs), strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-9, atol=1e-9)


def test_many_tokens_do_go_through_blocks(monkeypatch):
    seen = []
    blocks = cached_linear._blocks
    monkeypatch.setattr(cached_linear, "_blocks", lambda *t: seen.append(len(t)) or blocks(*t))
    for count in (2 * ROWS, 2 * ROWS + 1):
        assert not seen
        inputs = tokens_of(count, torch.float32), *layers(torch.float32)
        outcomes(lambda t, e, c: feed_forward(t, e, c, "gelu"), *inputs)
    assert seen == [2, 3]


def test_autocast_takes_its_own_layers():
    expand, contract = layers(torch.float32)
    tokens = tokens_of(2 * ROWS + 1, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert feed_forward(tokens, expand, contract, "gelu").dtype == torch.bfloat16
        assert linear(tokens, expand.weight, expand.bias).dtype == torch.bfloat16
