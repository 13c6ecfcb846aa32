# SPDX-License-Identifier: Apache-2.0
"""Training in float16 with a static loss scale: gradients survive, overflows change nothing."""

import pytest
import torch

from recsys.train.optimizers.precision import Precision
from tests.bert4rec.steps import FLOAT32, config, make_model, train

LOSSES = [
    {"loss": "full"},
    {"loss": "sampled", "head": "tied"},
    {"loss": "sampled", "clip_norm": 0.01},
    {"loss": "gbce"},
]


def half(loss_scale):
    return Precision(device_type="cpu", dtype=torch.float16, loss_scale=loss_scale)


def accumulated(settings):
    return config(train_batch_size=10, accumulation_steps=2, **settings)


def first_moments(precision, settings):
    """Returns a tenth of the gradients that the first step applied."""
    step, *_ = train(accumulated(settings), precision)
    moments = [m for name, m in step.optimizer.state().items() if name.endswith("exp_avg")]
    return torch.cat([moment.flatten() for moment in moments])


def flushed(gradients, exact):
    return float(((gradients == 0) & (exact != 0)).double().mean())


@pytest.mark.parametrize("settings", LOSSES)
def test_the_loss_scale_keeps_small_gradients(settings):
    exact = first_moments(FLOAT32, settings)
    scaled, unscaled = (first_moments(half(scale), settings) for scale in (1024.0, 1.0))
    assert float((scaled - exact).norm() / exact.norm()) < 1e-3
    assert flushed(unscaled, exact) > 0.002 > flushed(scaled, exact)


@pytest.mark.parametrize("settings", LOSSES)
def test_an_overflow_changes_nothing(settings):
    step, model, _ = train(accumulated(settings), half(1e30), epochs=2)
    untouched = make_model(config(**settings))
    for (name, after), before in zip(model.named_parameters(), untouched.parameters(), strict=True):
        assert torch.equal(after, before), name
    states = {**step.optimizer.state(), **step.item_state()}
    assert [name for name, tensor in states.items() if tensor.any()] == []
    _, moved, _ = train(accumulated(settings), half(1024.0))
    assert not torch.equal(moved.blocks[0].qkv.weight, untouched.blocks[0].qkv.weight)


@pytest.mark.parametrize("settings", LOSSES)
@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_the_update_does_not_depend_on_the_scale(settings, clip_norm):
    settings = accumulated(settings | {"clip_norm": clip_norm})
    _, model, _ = train(settings, epochs=3)
    _, scaled, _ = train(settings, Precision(device_type="cpu", loss_scale=256.0), epochs=3)
    for (name, a), b in zip(model.named_parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=name)
