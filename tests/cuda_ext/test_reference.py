# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuda_ext import ops, reference
from cuda_ext.row_rules import ROW_RULES
from tests.harness import refusal


def loop_interaction(features):
    """The formula, one dot product at a time."""
    batch, num_vectors, _ = features.shape
    rows = []
    for b in range(batch):
        row = list(features[b, 0])
        for i in range(num_vectors):
            row += [features[b, i] @ features[b, j] for j in range(i)]
        row += [features.new_zeros(())] * (-len(row) % 8)
        rows.append(torch.stack(row))
    return torch.stack(rows) if rows else features.new_zeros(0, 0)


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 12))
def test_dot_interaction_is_the_formula(batch, num_vectors, dim):
    generator = torch.Generator().manual_seed(batch * 100 + num_vectors * 10 + dim)
    features = torch.randn(batch, num_vectors, dim, generator=generator, dtype=torch.float64)
    found = ops.dot_interaction(features)
    assert found.shape[1] == reference.interaction_width(num_vectors, dim)
    torch.testing.assert_close(found, loop_interaction(features), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3), (2, 0, 3), (1, 2, 3, 4)])
def test_dot_interaction_refuses_other_shapes(shape):
    with refusal("features", kind=ValueError):
        ops.dot_interaction(torch.zeros(shape))


LOOKUPS = torch.tensor([3, 1, 3, 3, 0, 1])
USED, OTHERS = [0, 1, 3], [2, 4, 5]


def dense_gradient(gradients):
    return torch.zeros(6, gradients.shape[1]).index_add(0, LOOKUPS, gradients)


@pytest.fixture(params=[reference.update_rows, ops.update_rows], ids=["reference", "ops"])
def updated(request):
    """Three steps on a small table, by the definition or by whatever path the ops take."""

    def run(optimizer, steps=3, weight_decay=0.0, overflow=None, scale=1.0):
        generator = torch.Generator().manual_seed(3)
        table = torch.randn(6, 4, generator=generator)
        start = table.clone()
        state = ops.row_optimizer_state(optimizer, table)
        gradients = [torch.randn(6, 4, generator=generator) for _ in range(steps)]
        for i, g in enumerate(gradients):
            step = ops.RowStep(
                lr=torch.tensor(0.1),
                step=torch.tensor(i + 1.0),
                weight_decay=weight_decay,
                inverse_scale=torch.tensor(1 / scale),
                overflow=overflow,
            )
            request.param(optimizer, table, state, LOOKUPS, g * scale, step)
        assert torch.equal(table[OTHERS], start[OTHERS])
        return start, table, state, gradients

    return run


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_sgd_equals_the_dense_optimizer(updated, scale):
    start, table, _, gradients = updated("sgd", scale=scale)
    for g in gradients:
        start -= 0.1 * dense_gradient(g)
    torch.testing.assert_close(table, start)


def test_rowwise_adagrad_equals_its_formula_in_float64(updated):
    start, table, state, gradients = updated("rowwise_adagrad")
    expected, sums = start.double(), torch.zeros(6, dtype=torch.float64)
    for g in gradients:
        dense = dense_gradient(g).double()
        sums += dense.square().mean(1)
        expected -= 0.1 * dense / (sums.sqrt() + 1e-8).unsqueeze(1)
    torch.testing.assert_close(table, expected.float())
    torch.testing.assert_close(state["sum_of_squares"], sums.float())


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adagrad_equals_torch_adagrad_on_the_rows_that_occur(updated, weight_decay):
    start, table, state, gradients = updated("adagrad", weight_decay=weight_decay)
    twin = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adagrad([twin], lr=0.1, eps=1e-8, weight_decay=weight_decay)
    for g in gradients:
        twin.grad = dense_gradient(g)
        optimizer.step()
    torch.testing.assert_close(table[USED], twin.detach()[USED])
    torch.testing.assert_close(state["sum_of_squares"][USED], optimizer.state[twin]["sum"][USED])


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_adam_equals_torch_sparse_adam(updated, weight_decay):
    start, table, _, gradients = updated("adam", weight_decay=weight_decay)
    twin = torch.nn.Parameter(start)
    optimizer = torch.optim.SparseAdam([twin], lr=0.1, eps=1e-8)
    for g in gradients:
        decay = 0.1 * weight_decay * twin.detach()[USED]
        twin.grad = torch.sparse_coo_tensor(LOOKUPS[None], g, (6, 4), check_invariants=False)
        optimizer.step()
        twin.data[USED] -= decay
    torch.testing.assert_close(table, twin.detach())


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_weight_decay_counts_once_per_row(updated, optimizer):
    start, table, _, gradients = updated(optimizer, steps=1, weight_decay=0.5)
    dense = dense_gradient(gradients[0])
    total = dense[USED] + 0.5 * start[USED]
    if optimizer == "rowwise_adagrad":
        total = total / (total.square().mean(1).sqrt() + 1e-8).unsqueeze(1)
        # Decay is part of the gradient, so it enters the accumulator as in torch.optim.Adagrad.
    torch.testing.assert_close(table[USED], start[USED] - 0.1 * total)


@pytest.mark.parametrize("optimizer", ROW_RULES)
def test_overflow_changes_nothing(updated, optimizer):
    start, table, state, _ = updated(
        optimizer, weight_decay=0.01, overflow=torch.tensor(True), scale=float("inf")
    )
    assert torch.equal(table, start)
    assert all((s == 0).all() for s in state.values())


def test_stochastic_rounding_is_unbiased_and_keeps_what_is_exact():
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    rows = torch.tensor([0, 1, 5, 2**31, 2**40])
    exact = values.to(torch.bfloat16).float()
    drawn = [
        reference.stochastic_bfloat16(values, rows, 7, torch.tensor(float(step)))
        for step in range(1000)
    ]
    mean = torch.stack(drawn).double().mean(0)
    # One draw is off by up to 2^-7 relative; the mean of 1000 by a 30th of that, five sigma.
    assert ((mean - values).abs() <= values.abs() * 2**-7 * 5 / 1000**0.5).all()
    step = torch.tensor(3.0)
    assert torch.equal(reference.stochastic_bfloat16(exact, rows, 7, step).float(), exact)
    special = torch.tensor([[float("inf"), float("-inf"), float("nan")]])
    kept = reference.stochastic_bfloat16(special, rows[:1], 7, step)
    assert torch.equal(kept.isnan(), special.isnan())
    assert torch.equal(kept[0, :2].float(), special[0, :2])
