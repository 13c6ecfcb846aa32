# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.train.optimizers.schedule import WarmupPolynomialDecay

SEED = WarmupPolynomialDecay(
    base_lr=28.0, warmup_steps=6400, decay_start_step=64000, decay_steps=80000, decay_power=2
)


WARMUP = WarmupPolynomialDecay(base_lr=1.0, warmup_steps=100, warmup_factor=2)
AFTER_WARMUP = WarmupPolynomialDecay(base_lr=2.0, warmup_steps=10, decay_steps=10, decay_power=1)
TO_AN_END = WarmupPolynomialDecay(base_lr=2.0, decay_steps=10, decay_end_lr=0.5)


@pytest.mark.parametrize(
    ("schedule", "step", "lr"),
    [
        (SEED, 200, 0.875),  # the published log prints 0.8794 at step 201
        (SEED, 201, 0.879375),
        (SEED, 6400, 28.0),
        (SEED, 64000, 28.0),
        (SEED, 104000, 28.0 * 0.25),
        (SEED, 144000, 0.0),
        (SEED, 200000, 0.0),
        (WARMUP, 0, 0.75),
        (WARMUP, 100, 1.0),
        (WarmupPolynomialDecay(base_lr=1.0, warmup_steps=100, warmup_factor=5000), 1, 1.0),
        (AFTER_WARMUP, 10, 2.0),  # a decay without start begins after the warm-up
        (AFTER_WARMUP, 15, 1.0),
        (AFTER_WARMUP, 20, 0.0),
        (TO_AN_END, 9, 0.5),
        (TO_AN_END, 10**6, 0.5),
    ],
)
def test_rates_of_steps(schedule, step, lr):
    assert schedule.lr(step) == pytest.approx(lr, rel=1e-12)


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
