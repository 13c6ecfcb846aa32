# SPDX-License-Identifier: Apache-2.0
"""The focal loss in blocks against its formula in plain PyTorch, in float64."""

import pytest
import torch
from torch.nn import functional as F

from bert4rec.nn.focal import focal_loss
from bert4rec.nn.softmax_loss import softmax_cross_entropy
from tests.bert4rec.test_large_catalogues import config, train
from tests.bert4rec.test_losses import problem


def plain(hidden, weight, bias, labels, gamma):
    logits = F.linear(hidden, weight, bias)
    losses = F.cross_entropy(logits, labels, reduction="none")
    true = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    return ((1 - true) ** gamma * losses).mean()


BY_ITEMS, BY_ROWS = (1, 6, 35), (37 * 32, 10_000)
"""Bounds of the logits in memory under which the items or the targets are split."""


@pytest.mark.parametrize("max_logits", [*BY_ITEMS, *BY_ROWS])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("with_bias", [True, False])
def test_loss_and_gradient_are_exact(max_logits, gamma, with_bias):
    hidden, weight, bias, labels = problem(targets=40)
    bias = bias if with_bias else None
    inputs = [t.requires_grad_() for t in (hidden, weight, bias) if t is not None]
    blocked = softmax_cross_entropy(
        hidden, weight, bias, labels, max_logits, loss_scale=8.0, focal_gamma=gamma
    )
    expected = plain(hidden, weight, bias, labels, gamma)
    torch.testing.assert_close(blocked, expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(blocked * 3, inputs)
    for ours, exact in zip(gradients, torch.autograd.grad(expected * 3, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("max_logits", BY_ITEMS)
def test_gradcheck(max_logits):
    hidden, weight, bias, labels = problem()
    inputs = [t.requires_grad_() for t in (hidden, weight, bias)]

    def loss(*tensors):
        return softmax_cross_entropy(*tensors, labels, max_logits, focal_gamma=2.0)

    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_slope_is_finite_at_every_probability(gamma):
    losses, slopes = focal_loss(torch.tensor([0.0, 1e-30, 1e-7, 1.0, 200.0]), gamma)
    assert losses.isfinite().all()
    assert slopes.isfinite().all()
    assert (losses[0], slopes[0]) == (0, pytest.approx(0, abs=1e-10))
    torch.testing.assert_close(losses[-1], torch.tensor(200.0))
    torch.testing.assert_close(slopes[-1], torch.tensor(1.0))


def test_training_minimises_it():
    _, losses = train(config(focal_gamma=2.0), steps=3)
    _, entropies = train(config(focal_gamma=0.0), steps=3)
    assert losses[0] == pytest.approx(entropies[0] * (1 - 1 / 50) ** 2, rel=5e-3)
    assert losses[-1] < losses[0]
