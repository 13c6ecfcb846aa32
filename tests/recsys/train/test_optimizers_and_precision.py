# SPDX-License-Identifier: Apache-2.0
import copy
import functools
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.train.optimizers.dense import DenseRule, build_dense_optimizer
from recsys.train.optimizers.precision import Precision, resolve_precision, set_tf32
from recsys.train.optimizers.schedule import WarmupPolynomialDecay, WarmupStepDecay
from tests.harness import assert_tells

CPU = torch.device("cpu")
TWINS = {
    "sgd": torch.optim.SGD,
    "adagrad": functools.partial(torch.optim.Adagrad, eps=1e-8),
    "adam": functools.partial(torch.optim.AdamW, eps=1e-8),
}
"""Dense optimizer -> PyTorch's of the same formula."""
EVERY_RULE = pytest.mark.parametrize("rule", get_args(DenseRule))


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (5,))]


@EVERY_RULE
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_equals_torch(rule, weight_decay, scale):
    ours, theirs = parameters(), parameters()
    optimizer = build_dense_optimizer(rule, ours, weight_decay)
    twin = TWINS[rule](theirs, lr=0.05, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(1)
    no_overflow = torch.tensor(False) if scale != 1.0 else None
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            b.grad = torch.randn(b.shape, generator=generator)
            a.grad = b.grad * scale
        optimizer.step(torch.tensor(0.05), scale, no_overflow)
        twin.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@EVERY_RULE
def test_overflow_changes_nothing(rule):
    params = parameters()
    optimizer = build_dense_optimizer(rule, params, 0.1)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step(torch.tensor(0.1), 1024.0, torch.tensor(False))
    before = [p.detach().clone() for p in params]
    state = {k: v.clone() for k, v in optimizer.state().items()}
    params[0].grad.fill_(float("inf"))
    params[1].grad.fill_(float("nan"))
    optimizer.step(torch.tensor(0.1), 1024.0, torch.tensor(True))
    assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))
    assert all(torch.equal(state[k], v) for k, v in optimizer.state().items())


@EVERY_RULE
def test_copied_state_continues_identically(rule):
    def train(params, optimizer, steps, seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step(torch.tensor(0.1), 1.0, None)

    whole = parameters()
    optimizer = build_dense_optimizer(rule, whole)
    train(whole, optimizer, 3, seed=5)
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in whole]
    stored = copy.deepcopy(optimizer.state())
    again = build_dense_optimizer(rule, resumed)
    for name, tensor in again.state().items():
        tensor.copy_(stored[name])
    train(whole, optimizer, 3, seed=6)
    train(resumed, again, 3, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_overflow_is_found_in_any_gradient():
    precision = Precision(device_type="cpu", dtype=torch.float16, loss_scale=1024.0)
    fine = [torch.ones(3), torch.ones(2, 2)]
    assert not precision.find_overflow(fine)
    for bad in (float("inf"), float("-inf"), float("nan")):
        for dtype in (torch.float32, torch.float16):
            assert precision.find_overflow([*fine, torch.tensor([1.0, bad], dtype=dtype)])
    quiet, raised = torch.tensor(False), torch.tensor(True)
    assert precision.find_overflow(fine, [raised, quiet])
    assert not precision.find_overflow(fine, [quiet])
    assert precision.find_overflow([], [quiet, raised])
    assert precision.find_overflow([]) is None
    assert Precision(device_type="cpu").find_overflow(fine, [raised]) is None


def test_amp_on_a_cpu_uses_bfloat16_only_where_it_is_fast(monkeypatch, caplog):
    assert resolve_precision(CPU, False, "float16", 1024.0).dtype is None
    monkeypatch.setattr("recsys.train.optimizers.precision._cpu_gains_by_bfloat16", lambda: False)
    assert resolve_precision(CPU, True, "bfloat16", 1024.0).dtype is None
    assert_tells(caplog.text, "bfloat16")
    monkeypatch.setattr("recsys.train.optimizers.precision._cpu_gains_by_bfloat16", lambda: True)
    found = resolve_precision(CPU, True, "float16", 1024.0)
    assert (found.dtype, found.loss_scale) == (torch.bfloat16, 1.0)
    assert_tells(caplog.messages[-1], "bfloat16")


@pytest.mark.parametrize(
    ("has_amx", "has_avx512", "is_intel", "gains"),
    [
        (True, True, True, True),
        (False, True, True, False),  # as virtual machines show an Intel processor
        (False, True, False, True),
        (False, False, False, False),
    ],
)
def test_bfloat16_is_for_amx_and_for_avx512_not_of_intel(
    monkeypatch, has_amx, has_avx512, is_intel, gains
):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: has_amx)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: has_avx512)
    monkeypatch.setattr("cuda_ext.ops.CPU_IS_INTEL", is_intel)
    found = resolve_precision(CPU, True, "bfloat16", 1024.0)
    assert found.dtype == (torch.bfloat16 if gains else None)


def test_amp_on_cuda_keeps_the_static_scale():
    found = resolve_precision(torch.device("cuda"), True, "float16", 512.0)
    assert (found.dtype, found.loss_scale) == (torch.float16, 512.0)
    assert resolve_precision(torch.device("cuda"), True, "bfloat16", 512.0).loss_scale == 1.0


def test_tf32_is_for_gpus(caplog):
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    set_tf32(CPU, True)
    assert_tells(caplog.text, "`tf32`", "float32")
    assert matmul.fp32_precision == before
    try:
        set_tf32(torch.device("cuda"), True)
        assert matmul.fp32_precision == "tf32"
        set_tf32(torch.device("cuda"), False)  # the next run of the process
        assert matmul.fp32_precision == "ieee"
    finally:
        matmul.fp32_precision = before


SEED = WarmupPolynomialDecay(
    base_lr=28.0, warmup_steps=6400, decay_start_step=64000, decay_steps=80000, decay_power=2
)


WARMUP = WarmupPolynomialDecay(base_lr=1.0, warmup_steps=100, warmup_factor=2)
AFTER_WARMUP = WarmupPolynomialDecay(base_lr=2.0, warmup_steps=10, decay_steps=10, decay_power=1)
IN_STEPS = WarmupStepDecay(base_lr=1.0, warmup_steps=2, interval=6, factor=0.1)
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
        (IN_STEPS, 1, 0.5),
        (IN_STEPS, 6, 1.0),  # StepLR counts from 0: six steps have the first rate
        (IN_STEPS, 7, 0.1),
        (IN_STEPS, 13, 0.01),
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
