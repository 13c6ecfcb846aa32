# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.train.optimizers.schedule import WarmupPolynomialDecay

SEED = WarmupPolynomialDecay(
    base_lr=28.0, warmup_steps=6400, decay_start_step=64000, decay_steps=80000, decay_power=2
)


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        (200, 0.875),  # the published log prints 0.8794 at step 201
        (201, 0.879375),
        (6400, 28.0),
        (64000, 28.0),
        (104000, 28.0 * 0.25),
        (144000, 0.0),
        (200000, 0.0),
    ],
)
def test_matches_the_published_schedule(step, lr):
    assert SEED.lr(step) == pytest.approx(lr, rel=1e-12)


def test_any_warmup_factor_has_a_rate():
    schedule = WarmupPolynomialDecay(base_lr=1.0, warmup_steps=100, warmup_factor=5000)
    assert schedule.lr(1) == 1.0


def test_warmup_factor_sets_the_start():
    schedule = WarmupPolynomialDecay(base_lr=1.0, warmup_steps=100, warmup_factor=2)
    assert schedule.lr(0) == pytest.approx(0.75)
    assert schedule.lr(100) == 1.0


def test_decay_without_start_begins_after_the_warmup():
    schedule = WarmupPolynomialDecay(base_lr=2.0, warmup_steps=10, decay_steps=10, decay_power=1)
    assert schedule.lr(10) == 2.0
    assert schedule.lr(15) == 1.0
    assert schedule.lr(20) == 0.0


def test_never_falls_below_the_end():
    schedule = WarmupPolynomialDecay(base_lr=2.0, decay_steps=10, decay_end_lr=0.5)
    assert schedule.lr(9) == 0.5
    assert schedule.lr(10**6) == 0.5


def test_refuses_a_decay_inside_the_warmup():
    with pytest.raises(ValueError, match="`decay_start_step`"):
        WarmupPolynomialDecay(base_lr=1.0, warmup_steps=10, decay_start_step=5)


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 50), st.integers(1, 4))
def test_rises_then_falls(warmup, constant, decay, power):
    schedule = WarmupPolynomialDecay(
        base_lr=3.0,
        warmup_steps=warmup,
        decay_start_step=warmup + constant,
        decay_steps=decay,
        decay_power=power,
    )
    rates = [schedule.lr(s) for s in range(1, warmup + constant + decay + 5)]
    top = warmup - 1
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == 3.0
